"""The order of the tokens of several sequences in one stream, and whether a position in it still means what it did.

Of a job with several sequences the hash says which claim wrote which tokens. A claim writes its tokens in one order,
also where it sends them again, and what was stored before a claim is there wherever the claim is. So a position that
names the claim of its last token holds as long as that claim has that token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.queue.keys import JobHash
from octavo.terms.positions import Position

FIELDS = (JobHash.RUN, JobHash.TOKENS, JobHash.EPOCHS)
"""Fields of a job's hash, of which `order_of` takes the values. Read them after the entries."""

_ENDS = re.compile(rb"(?:[0-9a-f]{8}:\d{1,15} ?)*")


@dataclass(frozen=True)
class Order:
    """`run` is the server's run that accepted a job with several sequences, None of any other job. `stored` tokens are
    there. `ends` has, in their order, each epoch and the offset behind its last token."""

    run: str | None = None
    stored: int = 0
    ends: tuple[tuple[str, int], ...] = ()

    @property
    def several(self) -> bool:
        return self.run is not None

    def epoch_at(self, offset: int) -> str:
        """The epoch of the token before `offset`; "" if it is not known, as for workers of before."""
        if self.several and offset > 0:
            for epoch, end in self.ends:
                if offset <= end:
                    return epoch
        return ""

    def holds(self, position: Position) -> bool | None:
        """True if a position means what it did when it was read. None: only if the server's run is still `run`."""
        if position.offset == 0 or not self.several:
            return True
        if not position.epoch:
            return None
        return position.offset <= self.stored and self.epoch_at(position.offset) == position.epoch


ONE_SEQUENCE = Order()


def order_of(values: Sequence[bytes | None]) -> Order:
    """The order of a job from `FIELDS`. Values that something else has spoiled tell nothing."""
    run, stored, epochs = values
    if run is None:
        return ONE_SEQUENCE
    whole = _ENDS.fullmatch(epochs or b"")
    parts = [part.partition(":") for part in whole[0].decode().split()] if whole else []
    ends = tuple((epoch, int(end)) for epoch, _, end in parts)
    return Order(run.decode(errors="replace"), int(stored) if stored and stored.isdigit() else 0, ends)


def run_of(info: Any) -> str:
    """The server's run, from its answer to `INFO server`."""
    return str(info["run_id"])
