"""Where rank 0 posts what all ranks are to compute."""

from __future__ import annotations

import struct

from octavo_kernels.exchange.ranks import arrives, post
from octavo_worker.ranks.memory import BOARD_BYTES, BOARD_SLOTS, RankMemory
from octavo_worker.ranks.rank import Rank

_PATIENCE_MS = 1000
_HEAD = struct.Struct("=II")  # bytes of this sheet, sheets of the message that follow
_SHEET_BYTES = BOARD_BYTES - _HEAD.size


class Board:
    """Messages of any length, of which every rank reads each. A message is written once, on one sheet or on several; a
    sheet is written again when all ranks have read it."""

    def __init__(self, memory: RankMemory, rank: Rank) -> None:
        self._memory, self._rank = memory, rank
        self._sheets = [sheet.numpy().data for sheet in memory.board]
        self._number = 0

    def publish(self, message: bytes) -> None:
        """As rank 0. Raises `RankLost` if a rank does not read any more."""
        sheets = [message[at : at + _SHEET_BYTES] for at in range(0, len(message), _SHEET_BYTES)] or [b""]
        for left, sheet in zip(reversed(range(len(sheets))), sheets, strict=True):
            self._number += 1
            for other in range(1, self._rank.count):
                self._memory.wait(self._memory.taken(other), (self._number - BOARD_SLOTS) % (1 << 32), other)
            target = self._sheets[self._number % BOARD_SLOTS]
            _HEAD.pack_into(target, 0, len(sheet), left)
            target[_HEAD.size : _HEAD.size + len(sheet)] = sheet
            post(self._memory.published, self._number % (1 << 32))

    def read(self) -> bytes:
        """As another rank: waits for the next message, for hours if need be. Rank 0 may do something else."""
        parts, left = [], 1
        while left:
            self._number += 1
            while not arrives(self._memory.published, self._number % (1 << 32), _PATIENCE_MS):
                pass
            sheet = self._sheets[self._number % BOARD_SLOTS]
            length, left = _HEAD.unpack_from(sheet, 0)
            parts.append(bytes(sheet[_HEAD.size : _HEAD.size + length]))
            post(self._memory.taken(self._rank.index), self._number % (1 << 32))
        return b"".join(parts)
