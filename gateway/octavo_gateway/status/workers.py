"""The fleet behind this gateway, and the KV memory of each worker."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from octavo.terms.workers import CELL_STATES, DIGEST_SHOWN, WorkerInfo
from octavo_gateway.auth import Caller, CurrentCaller
from octavo_gateway.state import Gateway

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.get("")
async def index(request: Request, caller: CurrentCaller) -> dict[str, Any]:
    """All workers with a fresh heartbeat. Operators see hosts and what the engines counted by then, tenants their own
    pins alone."""
    gateway: Gateway = request.state.gateway
    workers = await gateway.client.workers()
    return {"object": "list", "data": [_worker_json(worker, caller) for worker in workers]}


@router.get("/{worker_id}/memory")
async def memory(request: Request, caller: CurrentCaller, worker_id: str) -> dict[str, Any]:
    """The worker's KV memory now: blocks by state, a map of them, what is shared, which preemptions took memory.

    `legend` tells the letters of the map. The worker is asked when the request comes, its engine answers between two
    steps; one that does not within three seconds is a `404`.
    """
    gateway: Gateway = request.state.gateway
    found = await gateway.client.worker_memory(worker_id)
    return {"object": "worker.memory", **found.model_dump(mode="json"), "legend": CELL_STATES}


def _worker_json(worker: WorkerInfo, caller: Caller) -> dict[str, Any]:
    if caller.is_operator:
        shown = worker.model_copy(update={"digest": worker.digest[:DIGEST_SHOWN]})
        return {"object": "worker", **shown.model_dump(mode="json")}
    own = f"{caller.tenant}:"
    pins = {name: pin for name, pin in worker.model_dump(mode="json")["pins"].items() if name.startswith(own)}
    return {"object": "worker", "id": caller.shown_worker(worker.id), "model": worker.model, "pins": pins}
