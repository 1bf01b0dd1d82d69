"""Grammars of requests, tried while their clients wait."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from octavo.terms.models import JobRequest
from octavo_gateway.http.streams import unless_disconnected
from octavo_gateway.state import Gateway


async def check_grammars(
    request: Request, job: JobRequest, tenant: str, field: str | None = None, **places: Any
) -> None:
    """`GrammarChecks.check_request`, which ends when the client goes away. Raises GrammarError, Busy, ClientGone."""
    gateway: Gateway = request.state.gateway
    if gateway.grammars.are_needed(job):
        checking = gateway.grammars.check_request(job, field, tenant=tenant, **places)
        await unless_disconnected(request, checking)
