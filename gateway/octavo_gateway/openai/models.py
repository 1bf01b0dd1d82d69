"""`GET /v1/models`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from octavo.terms.workers import ModelCard
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.errors import ApiError

router = APIRouter(tags=["openai"])


@router.get("/v1/models")
async def index(request: Request, tenant: CurrentTenant) -> dict[str, Any]:
    """All models that workers have registered, and their aliases, each as an entry."""
    named = await _named(request)
    return {"object": "list", "data": [_model_json(name, card) for name, card in sorted(named.items())]}


@router.get("/v1/models/{name:path}")
async def show(request: Request, tenant: CurrentTenant, name: str) -> dict[str, Any]:
    """One model. `404` for an unknown one."""
    cards = await _named(request)
    if name not in cards:
        known = ", ".join(sorted(cards)) or "none: start a worker first"
        message = f"no worker has ever served the model {name[:200]!r}; known models: {known}"
        raise ApiError(404, message, code="model_not_found", param="model")
    return _model_json(name, cards[name])


async def _named(request: Request) -> dict[str, ModelCard]:
    """Models by all of their names. An alias goes before a model of that name, which then has no workers."""
    cards = await request.state.gateway.client.models()
    return {card.name: card for card in cards} | {alias: card for card in cards for alias in card.aliases}


def _model_json(name: str, card: ModelCard) -> dict[str, Any]:
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
    }
