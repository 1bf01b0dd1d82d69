"""`GET /v1/models`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter, Request

from octavo import AsyncClient
from octavo.terms.workers import ModelCard
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.errors import ApiError

router = APIRouter(tags=["openai"])


@router.get("/v1/models")
async def index(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """All models that workers have registered, and how many workers of each are alive."""
    client = request.state.gateway.client
    cards, alive = await client.models(), await _live_workers(client)
    data = [_model_json(card, alive[card.name]) for card in sorted(cards, key=lambda card: card.name)]
    return {"object": "list", "data": data}


@router.get("/v1/models/{name:path}")
async def show(request: Request, tenant: CurrentTenant, name: str) -> dict[str, Any]:
    """One model. `404` for an unknown one."""
    client = request.state.gateway.client
    cards = {card.name: card for card in await client.models()}
    if name not in cards:
        known = ", ".join(sorted(cards)) or "none: start a worker first"
        message = f"no worker has ever served the model {name[:200]!r}; known models: {known}"
        raise ApiError(404, message, code="model_not_found", param="model")
    return _model_json(cards[name], (await _live_workers(client))[name])


async def _live_workers(client: AsyncClient) -> Counter[str]:
    return Counter(worker.model for worker in await client.workers())


def _model_json(card: ModelCard, live_workers: int) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": int(card.created_at),
        "owned_by": "octavo",
        "max_model_len": card.max_model_len,
        "quantization": card.quantization or None,
        "live_workers": live_workers,
    }
