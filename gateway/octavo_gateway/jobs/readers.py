"""Readers of one job's stream or log: its tenant, or a browser that was given a token for it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials

from octavo.terms.errors import NoSecret
from octavo.terms.models import JobInfo
from octavo_gateway.auth import BEARER, caller_of
from octavo_gateway.errors import ApiError
from octavo_gateway.http.origins import presented_tokens
from octavo_gateway.jobs.owned import check_id, check_owner, not_found
from octavo_gateway.state import Gateway

NO_SECRET = "read tokens need a secret: set OCTAVO_SECRET or OCTAVO_SECRET_FILE, the same for all gateways"


@dataclass(frozen=True)
class Reader:
    """A right to read: jobs of a tenant, or without one the job that a token was checked for, until a moment."""

    tenant: str | None
    until: float = math.inf

    def check(self, info: JobInfo) -> None:
        """Raises JobNotFound for the job of another tenant."""
        if self.tenant is not None:
            check_owner(info, self.tenant)

    @property
    def left_s(self) -> float | None:
        """Seconds until the right ends; None: it does not."""
        return None if math.isinf(self.until) else max(0.0, self.until - time.time())


async def _reader(
    request: Request,
    job_id: str,
    _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
    __: Annotated[str | None, Query(alias="token", description="A read token of this job, in place of a key.")] = None,
) -> Reader:
    check_id(job_id)
    tokens = presented_tokens(request.scope)
    if not tokens:
        return Reader((await caller_of(request)).tenant)
    gateway: Gateway = request.state.gateway
    until = _expiry(gateway, tokens, job_id)
    info, keeping = await gateway.client.keeping(job_id)
    if keeping.is_erased:
        raise not_found(info.id)
    return Reader(None, until)


CurrentReader = Annotated[Reader, Depends(_reader)]


async def _read_job(request: Request, job_id: str, reader: CurrentReader) -> JobInfo:
    gateway: Gateway = request.state.gateway
    info = await gateway.client.info(job_id)
    reader.check(info)
    return info


ReadJob = Annotated[JobInfo, Depends(_read_job)]


def _expiry(gateway: Gateway, tokens: list[str], job_id: str) -> int:
    """Raises ApiError 401, and NoSecret. No message repeats a token."""
    if gateway.read_tokens is None:
        raise NoSecret(NO_SECRET)
    until = gateway.read_tokens.expiry(tokens[0], job_id) if len(tokens) == 1 else None
    if until is None:
        raise ApiError(401, "this token is not of this job, or not of this service", code="invalid_read_token")
    if until <= time.time():
        raise ApiError(401, "this token has expired: ask for another", code="read_token_expired")
    return until
