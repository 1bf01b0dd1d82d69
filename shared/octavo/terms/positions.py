"""A place in a job's stream, as a reader keeps it."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

_POSITION = re.compile(r"(\d{1,15})(?:\.([0-9a-f]{8}))?", re.ASCII)


class Position(NamedTuple):
    """`offset` tokens are before it. `epoch`, of a job with several sequences: the claim that wrote the last of them,
    "" where that is not known.

    A server that has forgotten tokens gets them again, of several sequences perhaps in another order. The claim that
    wrote a token stands for the order of all before it, so a position with an epoch holds wherever nothing was lost.
    """

    offset: int = 0
    epoch: str = ""

    def __str__(self) -> str:
        return f"{self.offset}.{self.epoch}" if self.epoch else str(self.offset)

    @classmethod
    def of(cls, place: int | str | Position) -> Self:
        """An offset, or the text of a position. Raises ValueError."""
        if isinstance(place, tuple):
            return cls(*place)
        if isinstance(place, int):
            return cls(place)
        found = _POSITION.fullmatch(place)
        if found is None:
            raise ValueError(f"no position in a stream: {place[:40]!r}")
        return cls(int(found[1]), found[2] or "")
