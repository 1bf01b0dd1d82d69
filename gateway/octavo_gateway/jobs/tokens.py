"""`POST /v1/jobs/{job_id}/token`: a token with which a browser reads this job, and nothing else."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from octavo.client.read_tokens import read_token
from octavo.terms.access.read_tokens import DEFAULT_S
from octavo.terms.errors import NoSecret
from octavo.terms.fields import Frozen
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.http.body import JSON, described, media_type, parsed, read_body
from octavo_gateway.jobs.owned import check_id, check_owner
from octavo_gateway.jobs.readers import NO_SECRET
from octavo_gateway.state import Gateway

_MOST_BYTES = 1024

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


class TokenRequest(Frozen):
    """How long the token is to be good for. It never lasts longer than the job is kept."""

    seconds: int = Field(DEFAULT_S, ge=1, le=1 << 31, strict=True)


async def _asked(request: Request) -> TokenRequest:
    body = await read_body(request, _MOST_BYTES)
    if not body:
        return TokenRequest()
    media_type(request, JSON)
    return parsed(TokenRequest, body)


@router.post("/{job_id}/token", openapi_extra=described(TokenRequest, required=False))
async def create(
    request: Request, job_id: str, tenant: CurrentTenant, asked: Annotated[TokenRequest, Depends(_asked)]
) -> Response:
    """A token for `/stream` and `/log` of this job, by default for an hour. A page sends it as `?token=`, and needs no
    key. `501` where the gateway has no secret."""
    check_id(job_id)
    gateway: Gateway = request.state.gateway
    info, keeping = await gateway.client.keeping(job_id)
    check_owner(info, tenant)
    if gateway.read_tokens is None:
        raise NoSecret(NO_SECRET)
    token, expires_at = read_token(gateway.read_tokens, info, keeping, asked.seconds)
    self = f"/v1/jobs/{job_id}"
    body: dict[str, Any] = {
        "object": "job.read_token",
        "token": token,
        "expires_at": expires_at,
        "links": {"stream": f"{self}/stream?token={token}", "log": f"{self}/log?token={token}"},
    }
    return JSONResponse(body, headers={"Cache-Control": "no-store"})
