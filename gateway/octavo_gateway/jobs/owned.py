"""Jobs that a caller may see: those of its own tenant."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Request

from octavo.queue import jobs
from octavo.queue.keys import cell_of
from octavo.terms.errors import JobNotFound
from octavo.terms.models import JobInfo
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.state import Gateway


async def _own_job(request: Request, job_id: str, tenant: CurrentTenant) -> JobInfo:
    check_id(job_id)
    gateway: Gateway = request.state.gateway
    info = await gateway.client.info(job_id)
    check_owner(info, tenant)
    return info


OwnJob = Annotated[JobInfo, Depends(_own_job)]


def check_owner(info: JobInfo, tenant: str) -> None:
    """Raises JobNotFound: that there is such a job is another tenant's business."""
    if info.tenant != tenant:
        raise not_found(info.id)


def check_id(job_id: str) -> None:
    """Raises JobNotFound for what cannot be a job id."""
    if not re.fullmatch(r"g\d\d_.+", job_id):
        raise not_found(job_id)
    try:
        cell_of(job_id)
    except ValueError:
        raise not_found(job_id) from None


def not_found(job_id: str) -> JobNotFound:
    """The queue's own words, for another tenant's job, too."""
    return jobs.not_found(job_id[:40])
