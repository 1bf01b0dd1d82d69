"""A limit on the tokens of a thought."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.parsing import ThoughtMeter

_LONGEST_CHARACTER = 4  # bytes, a token each


class ThinkingBudget:
    """Says which tokens a sequence has to write next, whatever the model would choose: `owed`, those that close a
    thought of more than `limit` tokens. A function of the pieces of text so far, so that a takeover owes the same.

    They are not owed inside a character, which no text and no grammar would let end there.

    `closing` are the tokens that close a thought.
    """

    def __init__(self, limit: int, closing: Sequence[int], meter: ThoughtMeter) -> None:
        self.owed: list[int] = []
        self._limit = limit
        self._closing = closing
        self._meter = meter
        self._used = 0
        self._check()

    def take(self, text: str) -> None:
        """Another token, with the text that became certain with it."""
        was_inside = self._meter.inside
        self._meter.feed(text)
        if self.owed:
            self.owed.pop(0)
            if not self.owed:
                self._meter.close()
            return
        self._used += was_inside and self._meter.inside
        self._check(0 if text else _LONGEST_CHARACTER)

    def _check(self, patience: int = 0) -> None:
        if self._meter.inside and self._used >= self._limit + patience:
            self.owed = list(self._closing)
