"""The second group of blocks: those of layers with a window, in a model that has layers that see all, too.

Each group has a pool of blocks, host blocks, and a table of each sequence; tokens, block size and digests are the same.
Both tables have their blocks at the same positions. What falls out of the window is given back in the second group
alone: there a sequence of any length keeps a window, and what a step computes.

Both groups may lie in the same memory, which is cut into slabs: each holds some blocks of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec


@dataclass(frozen=True, slots=True)
class Slabs:
    """Memory that both groups share: `number` slabs, of `blocks` blocks of the first group or `windows` of the second.
    The first `kept` are for the second group, enough for one sequence to go on in, and have the null block of either.
    `lent` more are left to it by the longest sequence: its blocks there may lie in as many slabs, and a step computes
    so much of a prompt."""

    number: int
    blocks: int
    windows: int
    kept: int
    lent: int

    @classmethod
    def of(cls, number: int, num_blocks: int, num_windows: int, live: int, most: int) -> Slabs:
        """Slabs with so many blocks of each group in all. One sequence has `live` blocks of the second, and is to have
        `most` while its prompt is computed, for which it leaves a quarter of the slabs. Raises ValueError where blocks
        do not fill slabs."""
        if num_blocks % number or num_windows % number:
            raise ValueError(f"{num_blocks} blocks and {num_windows} of windows do not fill {number} slabs")
        windows = num_windows // number
        kept = -(-(live + 1) // windows)
        lent = max(live, min(-(-(most + 1) // windows) - kept, number // 4))
        return cls(number, num_blocks // number, windows, kept, lent)

    @property
    def for_one(self) -> int:
        """Blocks of the first group that one sequence can have in any case."""
        return max(0, self.number - self.kept - self.lent) * self.blocks

    @property
    def windows_beside(self) -> int:
        """Blocks of the second group that it can have beside those."""
        return (self.kept + self.lent) * self.windows - 1


def blocks_for_one(num_blocks: int, slabs: Slabs | None) -> int:
    """Blocks of the first group that one sequence can have of so many: all but the null block, or of memory that both
    groups share, what windows leave."""
    return num_blocks - 1 if slabs is None else slabs.for_one


@dataclass(frozen=True, slots=True)
class WindowBlocks:
    """The blocks of the second group, counted as `ModelRunner` counts those of the first: the null block of either pool
    is one of them, host blocks have the ids from `first_host_block` on. A query sees the last `window` tokens in its
    layers. The ids are those of this group alone. With `slabs` blocks of both groups lie in the same memory, the first
    of which is that of either first block."""

    num_blocks: int
    window: int
    num_host_blocks: int = 0
    first_host_block: int = 0
    slabs: Slabs | None = None

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
