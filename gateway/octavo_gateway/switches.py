"""Switches of thinking: which of them the templates of models have."""

from __future__ import annotations

import math
from time import monotonic

from octavo import AsyncClient
from octavo.terms.errors import OctavoError

_KNOWN_S = 1.0


class Switches:
    """Variables that the models' templates read, as their workers say. Models are asked for once a second at most, and
    where one is not known."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._known: dict[str, tuple[str, ...] | None] = {}
        self._asked_at = -math.inf

    async def of(self, model: str) -> tuple[str, ...] | None:
        """The variables of a model. None where they are not known: whatever hinders that, hinders its job more."""
        if model not in self._known or monotonic() - self._asked_at >= _KNOWN_S:
            try:
                cards = await self._client.models()
                self._known = {name: card.switches for card in cards for name in card.names}
            except OctavoError:
                return None
            self._asked_at = monotonic()
        return self._known.get(model)
