"""Memory that two pools share, slab by slab: Jenga (arXiv 2503.18292, section 4) with two kinds of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count

from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool


class SlabPool(BlockPool):
    """A pool of some slabs of a memory: block b lies in slab `b // size`. The others are *elsewhere*, with another
    pool: here their blocks are not even free.

    `whole` are the slabs that can be given away, none of whose blocks is in use, each with the moment of its last
    release. They are in the order of these.
    """

    def __init__(self, num_blocks: int, size: int, kept: int, moments: Iterator[int], here: range) -> None:
        """The first `kept` slabs are not given away by themselves. Pools of one memory have `moments` in common. The
        slabs `here` are this one's at first."""
        super().__init__(num_blocks)
        slabs = num_blocks // size
        self.size = size
        self.whole = dict.fromkeys(range(max(kept, here.start), here.stop), 0)
        self._kept, self._moments = kept, moments
        self._available_in = [0] * here.start + [size] * len(here) + [0] * (slabs - here.stop)
        self._available_in[0] = len(self._blocks_of(0)) if 0 in here else 0
        self._elsewhere = {*range(here.start), *range(here.stop, slabs)}
        self._away = self._available - sum(self._available_in)  # blocks of these slabs
        self._keep(range(max(1, here.start * size), here.stop * size))

    @property
    def total(self) -> int:
        return self.num_blocks - 1 - self._away

    @property
    def elsewhere(self) -> frozenset[int]:
        """The slabs that are with another pool."""
        return frozenset(self._elsewhere)

    @property
    def blocks_elsewhere(self) -> Iterable[int]:
        return chain.from_iterable(map(self._blocks_of, self._elsewhere))

    def give(self, slab: int) -> None:
        """Part with a slab, and forget what its blocks hold. Raises ValueError if one of them is in use."""
        blocks = self._blocks_of(slab)
        if slab in self._elsewhere or self._available_in[slab] < len(blocks):
            raise ValueError(f"slab {slab} is in use, or elsewhere")
        for block in blocks:
            self._unlink(block)
            if self._hash[block] is not None:
                self._cached -= 1
                self._forget(block)
        self._elsewhere.add(slab)
        self._away += len(blocks)

    def take(self, slab: int) -> None:
        """Have a slab from elsewhere, whose blocks are free. Raises ValueError if it is here."""
        if slab not in self._elsewhere:
            raise ValueError(f"slab {slab} is here")
        blocks = self._blocks_of(slab)
        for block in reversed(blocks):
            self._link(block, NULL_BLOCK, self._next[NULL_BLOCK])
        self._elsewhere.remove(slab)
        self._away -= len(blocks)

    def check_integrity(self, tables: Iterable[Sequence[int]] | None = None) -> None:
        super().check_integrity(tables)
        available = [0] * len(self._available_in)
        for block in self.free_order():
            available[block // self.size] += 1
        whole = [slab for slab, number in enumerate(available) if slab >= self._kept and number == self.size]
        if available != self._available_in or whole != sorted(self.whole):
            raise AssertionError("available blocks of slabs are counted wrong")
        if [*self.whole.values()] != sorted(self.whole.values()):
            raise AssertionError("whole slabs are not in the order of their last releases")

    def _link(self, block: int, before: int, after: int) -> None:
        super()._link(block, before, after)
        slab = block // self.size
        self._available_in[slab] += 1
        if self._available_in[slab] == self.size and slab >= self._kept:
            self.whole[slab] = next(self._moments)

    def _unlink(self, block: int) -> None:
        super()._unlink(block)
        slab = block // self.size
        self._available_in[slab] -= 1
        self.whole.pop(slab, None)

    def _blocks_of(self, slab: int) -> range:
        """The blocks of a slab that can be handed out."""
        return range(max(1, slab * self.size), (slab + 1) * self.size)


class SharedMemory:
    """A memory of `slabs`, each of which belongs to one of two pools: of `blocks`, or of `windows`. Ids of both count
    through all of it.

    The first `kept` slabs are for windows. Any other one, none of whose blocks is in use, changes hands when a pool
    lacks it. Rather than evict contents, windows take a slab that is empty, and the other pool one that was released
    longer ago than its own: most of what falls out of a window is never found again.
    """

    def __init__(self, slabs: int, kept: int, *, blocks_each: int, windows_each: int) -> None:
        moments = count(1)
        self.blocks = SlabPool(slabs * blocks_each, blocks_each, kept, moments, range(kept, slabs))
        self.windows = SlabPool(slabs * windows_each, windows_each, kept, moments, range(kept))

    def even_out(self, blocks: int, windows: int) -> tuple[int, int]:
        """Move slabs so that neither surplus is negative: what a pool has available beyond what it needs. The surplus
        of each then. Nothing moves if that cannot be."""
        if blocks < self.blocks.cached:
            windows, blocks = _move(self.windows, self.blocks, windows, blocks, self._is_older)
        if windows < self.windows.cached:
            blocks, windows = _move(self.blocks, self.windows, blocks, windows, self._is_empty)
        return blocks, windows

    @property
    def weight(self) -> float:
        """Blocks in the memory of one of windows."""
        return self.blocks.size / self.windows.size

    @property
    def obtainable(self) -> int:
        """Blocks that the first pool can have beside those that are available there."""
        return len(self.windows.whole) * self.blocks.size

    def check_integrity(self) -> None:
        """`AssertionError` unless each slab is with one pool."""
        blocks, windows = self.blocks.elsewhere, self.windows.elsewhere
        if blocks & windows or len(blocks | windows) != self.blocks.num_blocks // self.blocks.size:
            raise AssertionError("a slab is with both pools, or with neither")

    def _is_older(self, slab: int) -> bool:
        """True if a slab of windows was released before all that the other pool could give."""
        return self.windows.whole[slab] < next(iter(self.blocks.whole.values()), math.inf)

    def _is_empty(self, slab: int) -> bool:
        """True if nothing can be found in a slab of blocks."""
        size = self.blocks.size
        return not self.blocks.has_content(slab * size, (slab + 1) * size)


def _move(
    giver: SlabPool, taker: SlabPool, spare: int, surplus: int, is_better: Callable[[int], bool]
) -> tuple[int, int]:
    """Slabs from one pool to the other: as many as it lacks, or none, and then those that it had better take than evict
    what it holds. The surplus of either then."""
    lacking = max(0, -(surplus // taker.size))
    if lacking > len(giver.whole) or spare < lacking * giver.size:
        return spare, surplus
    while lacking > 0 or (
        surplus < taker.cached and spare >= giver.size and giver.whole and is_better(next(iter(giver.whole)))
    ):
        slab = next(iter(giver.whole))
        giver.give(slab)
        taker.take(slab)
        lacking, spare, surplus = lacking - 1, spare - giver.size, surplus + taker.size
    return spare, surplus
