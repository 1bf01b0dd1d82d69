"""One rank of a model, and its part of what all ranks share."""

from __future__ import annotations

from dataclasses import dataclass

VOCABULARY_STEP = 32
"""Parts of the vocabulary begin at multiples: a mask has 32 tokens a word, and noise is drawn for four at a time."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The rank `index` of `count`."""

    index: int
    count: int

    def share(self, total: int) -> range:
        """Its part of what `count` divides."""
        size = total // self.count
        return range(self.index * size, (self.index + 1) * size)


def vocabulary_of(size: int, rank: Rank) -> range:
    """The tokens of a rank: as many as every rank has, but the last, which may have fewer."""
    share = -(-size // (rank.count * VOCABULARY_STEP)) * VOCABULARY_STEP
    return range(min(rank.index * share, size), min((rank.index + 1) * share, size))
