"""The fleet behind this gateway, and the KV memory of each worker."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from octavo.models import CELL_STATES
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.state import Gateway

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.get("")
async def index(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """All workers with a fresh heartbeat, with what their engines counted by then."""
    gateway: Gateway = request.state.gateway
    workers = await gateway.client.workers()
    return {"object": "list", "data": [{"object": "worker", **worker.model_dump(mode="json")} for worker in workers]}


@router.get("/{worker_id}/memory")
async def memory(request: Request, tenant: CurrentTenant, worker_id: str) -> dict[str, Any]:
    """The worker's KV memory now: blocks by state, a map of them, what is shared, which preemptions took memory.

    `legend` tells the letters of the map. The worker is asked when the request comes, its engine answers between two
    steps; one that does not within three seconds is a `404`.
    """
    gateway: Gateway = request.state.gateway
    found = await gateway.client.worker_memory(worker_id)
    return {"object": "worker.memory", **found.model_dump(mode="json"), "legend": CELL_STATES}
