"""The input of a batch: one pass checks it and finds where each line lies; lines are read when they are needed."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Iterator

from octavo.dialects.openai.batch.envelope import FileCheck, Lines
from octavo.service.storage.interface import Storage

GROUP_LINES = 64
_GROUP_BYTES = 4 << 20
_GAP_BYTES = 64 << 10  # between two lines that are worth reading with them


class InputFile:
    """An index of a file. A place is the number of a line among those that are not blank, from 0 on."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._offsets = array("Q")
        self._lengths = array("I")

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
        return found, check

    def _add(self, check: FileCheck, lines: Iterator[tuple[int, int, bytes]]) -> None:
        for number, offset, line in lines:
            check.add(number, line)
            self._offsets.append(offset)
            self._lengths.append(len(line))

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
        """The content of lines; neighbours are read at once."""
        found: dict[int, bytes] = {}
        for run in self._runs(sorted(places)):
            start = self._offsets[run[0]]
            end = self._offsets[run[-1]] + self._lengths[run[-1]]
            data = b"".join([piece async for piece in self._storage.read(self._name, start, end)])
            for place in run:
                offset = self._offsets[place] - start
                found[place] = data[offset : offset + self._lengths[place]]
        return found

    def _runs(self, places: list[int]) -> Iterator[list[int]]:
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
