"""`/v1/fleet/lanes` and `/v1/fleet/dead_letters`: what operators change in the queue, by a program or from the page."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import Field

from octavo.terms.fields import Frozen, ModelName, Priority, Tenant
from octavo_gateway.auth import CurrentCaller
from octavo_gateway.errors import ApiError
from octavo_gateway.http.body import described, json_body
from octavo_gateway.live.buttons import pressed, requeued_json
from octavo_gateway.state import Gateway

router = APIRouter(prefix="/v1/fleet", tags=["fleet"])


class LaneChange(Frozen):
    """Lanes of a model that are to be paused or to go on: that of one class, or all."""

    model: ModelName
    priority: Priority | None = None
    paused: bool


class DeadLettersAction(Frozen):
    """Something that becomes of dead letters of one model, of one tenant and with one reason, as far as these are
    given. `all` must be true where none is."""

    action: Literal["requeue", "purge"]
    model: ModelName | None = None
    tenant: Tenant | None = None
    reason: str | None = Field(None, max_length=64)
    all: bool = False


async def allowed(
    request: Request,
    caller: CurrentCaller,
    origin: Annotated[str | None, Header()] = None,
    sec_fetch_site: Annotated[str | None, Header()] = None,
    x_octavo_page: Annotated[str, Header(max_length=100)] = "",
) -> None:
    """A dependency: requests of browsers need the token of a page that was loaded. Programs send no such headers."""
    if origin is not None or sec_fetch_site is not None:
        await pressed(request, caller, x_octavo_page)


@router.get("/lanes")
async def lanes(request: Request) -> dict[str, Any]:
    """The lanes that are paused."""
    return await _paused(request.state.gateway)


@router.post("/lanes", dependencies=[Depends(allowed)], openapi_extra=described(LaneChange))
async def change(request: Request, body: Annotated[LaneChange, Depends(json_body(LaneChange))]) -> dict[str, Any]:
    """Pause lanes, or let them go on. Jobs of a paused lane wait; those that run, or come back to it, go on."""
    gateway: Gateway = request.state.gateway
    if body.paused:
        await gateway.client.pause(body.model, body.priority)
    else:
        await gateway.client.resume(body.model, body.priority)
    return await _paused(gateway)


@router.get("/dead_letters")
async def dead_letters(
    request: Request,
    model: str | None = None,
    tenant: str | None = None,
    reason: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """Jobs that were given up, the latest first."""
    gateway: Gateway = request.state.gateway
    found = await gateway.client.dead_letters(limit, model=model, tenant=tenant, reason=reason)
    return {"object": "list", "data": [letter.model_dump(mode="json") for letter in found]}


@router.post("/dead_letters", dependencies=[Depends(allowed)], openapi_extra=described(DeadLettersAction))
async def act(
    request: Request, body: Annotated[DeadLettersAction, Depends(json_body(DeadLettersAction))]
) -> dict[str, Any]:
    """Submit jobs again that were given up, or forget them. `400` without a choice, unless `all` is true."""
    gateway: Gateway = request.state.gateway
    chosen: dict[str, Any] = {"model": body.model, "tenant": body.tenant, "reason": body.reason}
    if not body.all and not any(chosen.values()):
        raise ApiError(400, "name a model, a tenant or a reason, or say all: true", code="nothing_chosen", param="all")
    if body.action == "requeue":
        return requeued_json(await gateway.client.requeue_all(**chosen))
    return {"object": "fleet.purged", "purged": await gateway.client.purge(**chosen)}


async def _paused(gateway: Gateway) -> dict[str, Any]:
    found = await gateway.client.paused_lanes()
    return {"object": "list", "data": [lane.model_dump(mode="json") for lane in found]}
