"""`/v1/stats` and `/v1/fleet`: the fleet for operators."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from octavo.terms.fleet import FleetStats
from octavo_gateway.http.streams import EventStream, Mailbox, unless_draining
from octavo_gateway.state import Gateway

RETRY = b"retry: 1000\n\n"

router = APIRouter(tags=["fleet"])


@router.get("/v1/stats")
async def stats(request: Request) -> FleetStats:
    """Lanes with their jobs, workers, batches and dead letters now. Rates are those between two readings of this
    gateway, of which there is one every fifth of a second at most, however many ask."""
    gateway: Gateway = request.state.gateway
    return await gateway.observer.stats()


@router.get(
    "/v1/fleet/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def events(request: Request) -> Response:
    """The fleet as it changes: a `snapshot`, then a `change` up to five times a second. Members of `stats` are a JSON
    merge patch; `maps` has the blocks of workers that changed, null for a worker that left. A client that reads too
    slowly gets a `snapshot` again."""
    gateway: Gateway = request.state.gateway
    return EventStream(request, lambda mailbox: _pump(gateway, mailbox))


async def _pump(gateway: Gateway, mailbox: Mailbox) -> None:
    await mailbox.put(RETRY)
    await unless_draining(gateway, _follow(gateway, mailbox))


async def _follow(gateway: Gateway, mailbox: Mailbox) -> None:
    with gateway.observer.viewer() as viewer:
        while True:
            await mailbox.emptied()  # what comes meanwhile is for those that read
            await mailbox.put(await viewer.next())
