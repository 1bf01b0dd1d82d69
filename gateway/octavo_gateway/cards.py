"""Cards of models: one view of them for all that a gateway does with a request, kept for a second."""

from __future__ import annotations

import math
from time import monotonic

from octavo import AsyncClient
from octavo.terms.workers import ModelCard

_KNOWN_S = 1.0  # shorter than any heartbeat is fresh


class Cards:
    """The models that jobs are accepted for, by all of their names, and those that live workers serve. Each is asked
    for once a second at most, and where a model is not among them. Every method raises ServerUnavailable."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._named: dict[str, ModelCard] = {}
        self._named_at = -math.inf
        self._live: frozenset[str] = frozenset()
        self._live_at = -math.inf

    async def of(self, model: str) -> ModelCard | None:
        """The card of a model by any name; None for an unknown one."""
        if model not in self._named or monotonic() - self._named_at >= _KNOWN_S:
            asked_at = monotonic()
            self._named = by_name(await self._client.models())
            self._named_at = asked_at
        return self._named.get(model)

    async def is_served(self, card: ModelCard) -> bool:
        """True if a worker of a model has a fresh heartbeat."""
        if card.name not in self._live or monotonic() - self._live_at >= _KNOWN_S:
            asked_at = monotonic()
            self._live = frozenset(worker.model for worker in await self._client.workers())
            self._live_at = asked_at
        return card.name in self._live


def by_name(cards: list[ModelCard]) -> dict[str, ModelCard]:
    """Models by all of their names. An alias goes before a model of that name, which then has no workers."""
    return {card.name: card for card in cards} | {alias: card for card in cards for alias in card.aliases}
