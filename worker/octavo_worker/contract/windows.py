"""The second group of blocks: those of layers with a window, in a model that has layers that see all, too.

Each group has a pool of blocks, host blocks, and a table of each sequence; tokens, block size and digests are the same.
Both tables have their blocks at the same positions. What falls out of the window is given back in the second group
alone: there a sequence of any length keeps a window, and what a step computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec


@dataclass(frozen=True, slots=True)
class WindowBlocks:
    """The blocks of the second group, counted as `ModelRunner` counts those of the first: the null block of either pool
    is one of them, host blocks have the ids from `first_host_block` on. A query sees the last `window` tokens in its
    layers. The ids are those of this group alone."""

    num_blocks: int
    window: int
    num_host_blocks: int = 0
    first_host_block: int = 0

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ValueError(f"a window of {self.window} tokens: 2 are the least, a query and one before it")


class BlockMoves(msgspec.Struct, frozen=True, gc=False):
    """Copies of one group of blocks in a step: (source, target) on the device, (device block, host block) of what is
    swapped out, (host block, device block) of what is swapped in."""

    copies: Sequence[tuple[int, int]] = ()
    swap_out: Sequence[tuple[int, int]] = ()
    swap_in: Sequence[tuple[int, int]] = ()

    def are_read(self, tables: Iterable[Sequence[int]]) -> bool:
        """True if a block that is swapped in is read in the same step: by a copy of any kind, or in one of `tables`.
        Slots of states move likewise."""
        if not self.swap_in:
            return False
        loaded = {block for _, block in self.swap_in}
        copied = (source for source, _ in chain(self.swap_out, self.copies))
        return not loaded.isdisjoint(chain(copied, *tables))


NO_MOVES = BlockMoves()
