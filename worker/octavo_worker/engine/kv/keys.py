"""Keys and values that are there for a prompt, as the search for a common prefix asks for them."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from octavo_worker.contract.capacity import Capacity
from octavo_worker.memory.block_pool import NULL_BLOCK
from octavo_worker.memory.block_table import null_blocks


def no_tail(_: int) -> bool:
    """The answer where blocks are found whole only."""
    return False


class Keys:
    """The first `count` full blocks of a prompt in one group of blocks. `there` gives the entry of a table for each of
    them, the null block where there is none. `has_tail` says of a position amid a block whether the part of that block
    before it is there."""

    def __init__(
        self, count: int, there: Callable[[int], int], capacity: Capacity, has_tail: Callable[[int], bool] = no_tail
    ) -> None:
        self.count = count
        self._there = there
        self._capacity = capacity
        self._has_tail = has_tail

    def reach(self, most: int) -> int:
        """The longest prefix of at most `most` tokens whose keys are there, as far as its next query sees them. Costs
        what a window has, unless something is missing."""
        size = self._capacity.block_size
        full, behind = divmod(most, size)
        if behind and full <= self.count and self._last_missing(full, most) is None and self._has_tail(most):
            return most
        end = min(full, self.count)
        while (missing := self._last_missing(end, end * size)) is not None:
            end = missing
        return end * size

    def entries(self, position: int) -> array[int]:
        """The full blocks of a table that begins behind `position` tokens: null where no query sees them any more."""
        first, end = self._capacity.unseen(position), position // self._capacity.block_size
        return null_blocks(first) + array("i", map(self._there, range(first, end)))

    def _last_missing(self, end: int, position: int) -> int | None:
        """The last of the blocks before block `end` that a query at `position` sees and that is not there."""
        if not self._capacity.slides:
            return None
        blocks = range(end - 1, self._capacity.unseen(position) - 1, -1)
        return next((block for block in blocks if self._there(block) == NULL_BLOCK), None)
