"""Keys and values that are there for a prompt, as the search for a common prefix asks for them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from octavo_worker.contract.capacity import Capacity
from octavo_worker.memory.block_pool import NULL_BLOCK


class Keys:
    """The blocks `found` for the full blocks of a prompt, the null block where there is none. `has_tail` says of a
    position amid a block whether the part of that block before it is there."""

    def __init__(self, found: array[int], capacity: Capacity, has_tail: Callable[[int], bool]) -> None:
        self._size = capacity.block_size
        self._has_tail = has_tail
        self._ends: Sequence[int] = range(len(found) + 1)
        """For each count of blocks the largest, no larger, from whose end all is there."""
        if capacity.slides:
            ends, run = [0], 0
            for end, slot in enumerate(found, 1):
                run = 0 if slot == NULL_BLOCK else run + 1
                ends.append(end if run >= end - capacity.unseen(end * self._size) else ends[-1])
            self._ends = ends

    def reach(self, most: int) -> int:
        """The longest prefix of at most `most` tokens whose keys are there, as far as its last query sees them."""
        full, behind = divmod(most, self._size)
        end = self._ends[min(full, len(self._ends) - 1)]
        return most if behind and end == full and self._has_tail(most) else end * self._size
