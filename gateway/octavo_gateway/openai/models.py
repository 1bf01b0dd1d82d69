"""`GET /v1/models`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter, Request

from octavo import AsyncClient
from octavo.terms.workers import ModelCard
from octavo_gateway.auth import Caller, CurrentCaller
from octavo_gateway.cards import by_name
from octavo_gateway.errors import ApiError

router = APIRouter(tags=["openai"])


@router.get("/v1/models")
async def index(request: Request, caller: CurrentCaller) -> dict[str, Any]:
    """Models that workers have registered, and their aliases, each as an entry, with how many workers are alive: those
    that the key is for."""
    client = request.state.gateway.client
    named, alive = _for(caller, await client.models()), await _live_workers(client)
    data = [_model_json(name, card, alive[card.name]) for name, card in sorted(named.items())]
    return {"object": "list", "data": data}


@router.get("/v1/models/{name:path}")
async def show(request: Request, caller: CurrentCaller, name: str) -> dict[str, Any]:
    """One model. `404` for an unknown one."""
    client = request.state.gateway.client
    cards = _for(caller, await client.models())
    if name not in cards:
        known = ", ".join(sorted(cards)) or "none: start a worker first"
        message = f"no worker has ever served the model {name[:200]!r}; known models: {known}"
        raise ApiError(404, message, code="model_not_found", param="model")
    return _model_json(name, cards[name], (await _live_workers(client))[cards[name].name])


def _for(caller: Caller, cards: list[ModelCard]) -> dict[str, ModelCard]:
    return {name: card for name, card in by_name(cards).items() if caller.may_use(name)}


async def _live_workers(client: AsyncClient) -> Counter[str]:
    return Counter(worker.model for worker in await client.workers())


def _model_json(name: str, card: ModelCard, live_workers: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(card.created_at),
        "owned_by": "octavo",
        "root": card.name,
        "aliases": card.aliases,
        "max_model_len": card.max_model_len,
        "quantization": card.quantization or None,
        "sampling_defaults": card.sampling.given(),
        "live_workers": live_workers,
    }
