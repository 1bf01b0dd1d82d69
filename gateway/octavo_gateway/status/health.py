"""Is this process alive, is it ready, what does it count."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client.exposition import choose_encoder

from octavo.service.metrics.registry import Ready, accepted
from octavo.terms.errors import OctavoError, ServerUnavailable
from octavo_gateway.errors import UNAVAILABLE
from octavo_gateway.state import Gateway
from octavo_gateway.status.metrics import Seen, queue_families

router = APIRouter(tags=["health"])


@router.get("/livez")
async def livez() -> dict[str, str]:
    """200 while the process answers at all."""
    return {"status": "ok"}


@router.get("/health")
@router.get("/ping")
@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """200 when requests can be accepted: the server answers and takes writes, and some worker has registered a model.

    `/health` and `/ping` are the names that clients and hosts of other servers know.
    """
    reason = await _why_not_ready(request.state.gateway)
    return JSONResponse(
        {"status": "ready"} if reason is None else {"status": "unready", "reason": reason}, 503 if reason else 200
    )


@router.get("/version")
async def show_version() -> dict[str, str]:
    """The version of octavo."""
    return {"version": version("octavo")}


async def _why_not_ready(gateway: Gateway) -> str | None:
    if gateway.draining.is_set():
        return "this gateway is shutting down"
    try:
        models = await gateway.client.models()
        await gateway.writes.check()
    except ServerUnavailable as error:
        return error.message if gateway.keyring.is_open else UNAVAILABLE
    except OctavoError as error:
        return error.message
    return None if models else "no worker has registered a model yet: start one with `octavo worker`"


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format or OpenMetrics, as `Accept` asks, for operators: it counts the jobs of all tenants."""
    gateway: Gateway = request.state.gateway
    try:
        state, workers = await gateway.client.standing(), await gateway.client.workers()
    except OctavoError:
        queue = queue_families(None)
    else:
        gateway.metrics.know_models({model for model, _ in state.waiting})
        batches, deliveries = await gateway.files.batches_open(), await gateway.webhooks.backlog()
        queue = queue_families(Seen(state, workers, batches, deliveries))
        if gateway.tenant_figures is not None:
            queue += await gateway.tenant_figures.families()
    encode, media_type = choose_encoder(accepted(request.headers.get("accept", "")))
    return Response(encode(Ready([*gateway.metrics.families(), *queue])), media_type=media_type)
