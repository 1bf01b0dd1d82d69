"""The blocks of one worker as viewers have them: a number for each job that stays the same while it has blocks."""

from __future__ import annotations

from array import array
from typing import Any

from octavo.terms.messages import WorkerMap

_FIRST_OWNER = 16
_OWNER, _FLAGS = 0x3FFF, 0xC000
_CHUNK = 128  # blocks that are compared at a time


class BlockMap:
    """The latest map of a worker. A code is free (0), cached (1), quarantined (2) or the number of a job, from 16 on;
    0x8000 is added to it for shared blocks, 0x4000 for pinned ones."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._cells = array("H")
        self._shape: dict[str, Any] = {}

    def take(self, found: WorkerMap) -> dict[str, Any] | None:
        """Changes since the map before: None, or members as in `whole`, with `changes` in the place of `runs`: begin,
        length, code of one run after the other. A map of another shape, or with little that stayed, is whole."""
        before, old_numbers, old_shape = self._cells, self._numbers, self._shape
        self._number(found.owners)
        self._cells = self._drawn(found)
        self._shape = _shape(found)
        if self._shape != old_shape:
            return self.whole()
        changes = _changes(before, self._cells)
        owners = {str(number): owner for owner, number in self._numbers.items() if old_numbers.get(owner) != number}
        taken = set(self._numbers.values())
        gone = {str(number): None for number in old_numbers.values() if number not in taken}
        if not changes and not owners and not gone:
            return None
        if len(changes) > len(self._cells):
            return self.whole()
        return {"owners": owners | gone, "changes": changes}

    def whole(self) -> dict[str, Any]:
        """All of it. `runs` are length and code, one after the other; `owners` are jobs by their numbers."""
        owners = {str(number): owner for owner, number in self._numbers.items()}
        return {**self._shape, "owners": owners, "runs": _runs(self._cells)}

    def _number(self, owners: tuple[str, ...]) -> None:
        kept = {owner: self._numbers[owner] for owner in owners if owner in self._numbers}
        taken, number = set(kept.values()), _FIRST_OWNER
        for owner in owners:
            if owner not in kept:
                while number in taken:
                    number += 1
                taken.add(number)
                kept[owner] = number
        self._numbers = kept

    def _drawn(self, found: WorkerMap) -> array[int]:
        codes, lengths = array("H", found.codes), array("I", found.lengths)
        numbers = [self._numbers[owner] for owner in found.owners]
        cells = array("H")
        for code, length in zip(codes, lengths, strict=True):
            place = (code & _OWNER) - _FIRST_OWNER
            if 0 <= place < len(numbers):
                code = numbers[place] & _OWNER | code & _FLAGS
            cells.extend(array("H", (code,)) * length)
        return cells


def merged(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Two changes one after the other as one, `earlier` whole or not."""
    if "runs" in later:
        return later
    owners = {**earlier["owners"], **later["owners"]}
    return {**earlier, "owners": owners, "changes": [*earlier.get("changes", ()), *later["changes"]]}


def _shape(found: WorkerMap) -> dict[str, Any]:
    """How many tokens a block has, and how many blocks there are of each kind. `windows` and `states` are left out
    where a model has none."""
    beside = {"windows": found.windows, "states": found.states}
    counted = {kind: size for kind, size in beside.items() if size is not None}
    return {"block_size": found.block_size, "device": found.device, "host": found.host, **counted}


def _runs(cells: array[int]) -> list[int]:
    runs: list[int] = []
    begin, size = 0, len(cells)
    while begin < size:
        end = _end_of_run(cells, begin, size)
        runs += (end - begin, cells[begin])
        begin = end
    return runs


def _changes(before: array[int], after: array[int]) -> list[int]:
    """Begin, length and code of each run of blocks that are not as before. Chunks that are equal cost nothing."""
    changes: list[int] = []
    for first in range(0, len(after), _CHUNK):
        old, new = before[first : first + _CHUNK], after[first : first + _CHUNK]
        if old == new:
            continue
        begin = 0
        while begin < len(new):
            if old[begin] == new[begin]:
                begin += 1
                continue
            end, code = begin + 1, new[begin]
            while end < len(new) and new[end] == code and old[end] != code:
                end += 1
            changes += (first + begin, end - begin, code)
            begin = end
    return changes


def _end_of_run(cells: array[int], begin: int, size: int) -> int:
    code, end = cells[begin], begin + 1
    while end < size and cells[end] == code:
        end += 1
    return end
