"""The input of a batch: one pass checks it, finds where each line lies and puts lines in order; they are read when they
are needed."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Iterator

from octavo.dialects.openai.batch.beginnings import beginning
from octavo.dialects.openai.batch.envelope import FileCheck, Lines
from octavo.service.clerk.order import RUN_LINES, Order
from octavo.service.storage.interface import Storage

GROUP_LINES = 64
_GROUP_BYTES = 4 << 20
_GAP_BYTES = 64 << 10  # between two lines that are worth reading with them
_READ_AT_ONCE = 16


class InputFile:
    """An index of a file. A place is the number of a line in the order of submission, from 0 on."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._offsets = array("Q")
        self._lengths = array("I")
        self._order = Order()

    @classmethod
    async def read(cls, storage: Storage, name: str, url: str) -> tuple[InputFile, FileCheck]:
        """The index, and the check of a file whose lines are for `url`. Raises NotStored, StorageUnavailable."""
        found, check, lines = cls(storage, name), FileCheck(url), Lines()
        async for piece in storage.read(name):
            found._add(check, lines.feed(piece))
            if check.is_over:
                break
            await asyncio.sleep(0)  # leases are renewed meanwhile
        else:
            found._add(check, lines.end())
        check.end()
        found._put_in_order()
        return found, check

    def _add(self, check: FileCheck, lines: Iterator[tuple[int, int, bytes]]) -> None:
        for number, offset, line in lines:
            check.add(number, line)
            self._offsets.append(offset)
            self._lengths.append(len(line))
            self._order.add(beginning(line))
            if len(self._order) == RUN_LINES:
                self._put_in_order()

    def _put_in_order(self) -> None:
        """The lines of the last run take their places."""
        numbers, self._order = self._order.numbers(), Order()
        start = len(self._offsets) - len(numbers)
        for column in (self._offsets, self._lengths):
            column[start:] = array(column.typecode, [column[start + number] for number in numbers])

    def group(self, start: int, end: int) -> range:
        """The next places from `start` on that are submitted together: few, and not too large."""
        size, place = 0, start
        while place < min(end, start + GROUP_LINES):
            size += self._lengths[place]
            if size > _GROUP_BYTES and place > start:
                break
            place += 1
        return range(start, place)

    async def lines(self, places: Iterable[int]) -> dict[int, bytes]:
        """The content of lines, by place in order; neighbours in the file are read at once."""
        wanted, found = sorted(places), dict[int, bytes]()
        runs = list(self._runs(sorted(wanted, key=self._offsets.__getitem__)))
        for start in range(0, len(runs), _READ_AT_ONCE):
            for lines in await asyncio.gather(*(self._read(run) for run in runs[start : start + _READ_AT_ONCE])):
                found |= lines
        return {place: found[place] for place in wanted}

    async def _read(self, run: list[int]) -> dict[int, bytes]:
        start = self._offsets[run[0]]
        end = self._offsets[run[-1]] + self._lengths[run[-1]]
        data = b"".join([piece async for piece in self._storage.read(self._name, start, end)])
        offsets = ((place, self._offsets[place] - start) for place in run)
        return {place: data[offset : offset + self._lengths[place]] for place, offset in offsets}

    def _runs(self, places: list[int]) -> Iterator[list[int]]:
        """Places of lines that are neighbours, or nearly so. `places` are in the order of the file."""
        run: list[int] = []
        for place in places:
            if run:
                gap = self._offsets[place] - self._offsets[run[-1]] - self._lengths[run[-1]]
                size = self._offsets[place] + self._lengths[place] - self._offsets[run[0]]
                if gap > _GAP_BYTES or size > _GROUP_BYTES:
                    yield run
                    run = []
            run.append(place)
        if run:
            yield run
