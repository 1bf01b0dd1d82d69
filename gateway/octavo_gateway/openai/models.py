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
    """All models that workers have registered."""
    cards = await request.state.gateway.client.models()
    return {"object": "list", "data": [_model_json(card) for card in sorted(cards, key=lambda card: card.name)]}


@router.get("/v1/models/{name:path}")
async def show(request: Request, tenant: CurrentTenant, name: str) -> dict[str, Any]:
    """One model. `404` for an unknown one."""
    cards = {card.name: card for card in await request.state.gateway.client.models()}
    if name not in cards:
        known = ", ".join(sorted(cards)) or "none: start a worker first"
        message = f"no worker has ever served the model {name[:200]!r}; known models: {known}"
        raise ApiError(404, message, code="model_not_found", param="model")
    return _model_json(cards[name])


def _model_json(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": int(card.created_at),
        "owned_by": "octavo",
        "max_model_len": card.max_model_len,
        "quantization": card.quantization or None,
    }
