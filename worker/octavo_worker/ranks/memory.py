"""The memory that the ranks of one host share, and how they wait for each other in it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels.exchange.ranks import COUNT_BYTES, arrives
from octavo_worker.contract.lifetime import state_of
from octavo_worker.ranks.processes import reserve
from octavo_worker.ranks.rank import Rank

MOST_RANKS = 16
BOARD_SLOTS = 2
BOARD_BYTES = 1 << 20
SLICE_MS = 50
HUNG_SLICES = 12
"""A rank that neither computes nor wants to for so many slices, while others wait for it, does not come any more."""

_ARRIVED, _TAKEN = 0, MOST_RANKS * COUNT_BYTES
_PUBLISHED = 2 * MOST_RANKS * COUNT_BYTES
_PIDS = _PUBLISHED + COUNT_BYTES
_HEADER = 4096


class RankLost(RuntimeError):
    """A rank died or hangs: nothing more can be computed."""

    def __init__(self, rank: int | None, pid: int | None, what: str) -> None:
        """None: which one is not known."""
        super().__init__(f"a rank {what}" if rank is None else f"rank {rank} (process {pid}) {what}")
        self.rank, self.pid = rank, pid


class RankMemory:
    """Counts, the board of messages (`octavo_worker.ranks.board`), and room for what ranks exchange: `slots[2,
    ranks, slot_bytes]`, uint8. Counts are addresses, for `octavo_kernels.exchange.ranks`."""

    def __init__(self, descriptor: int, rank: Rank, slot_bytes: int) -> None:
        """Raises `RanksFailed` if there is not as much memory. Every rank asks for the same."""
        slot_bytes = -(-slot_bytes // COUNT_BYTES) * COUNT_BYTES
        board = BOARD_SLOTS * BOARD_BYTES
        size = _HEADER + board + 2 * rank.count * slot_bytes
        reserve(descriptor, size)
        self._rank = rank
        self._bytes = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
        self._base = self._bytes.data_ptr()
        self._pids = self._bytes[_PIDS : _PIDS + 4 * MOST_RANKS].view(torch.int32)
        self._pids[rank.index] = os.getpid()
        self.board = self._bytes[_HEADER : _HEADER + board].view(BOARD_SLOTS, BOARD_BYTES)
        self.slots = self._bytes[_HEADER + board :].view(2, rank.count, slot_bytes)
        self.published = self._base + _PUBLISHED

    def pid(self, rank: int) -> int:
        """Id of its process; 0 before it has begun."""
        return int(self._pids[rank])

    def arrived(self, rank: int) -> int:
        return self._base + _ARRIVED + rank * COUNT_BYTES

    def taken(self, rank: int) -> int:
        return self._base + _TAKEN + rank * COUNT_BYTES

    def wait(self, count: int, value: int, rank: int) -> None:
        """Until that rank has counted up to `value`. Raises `RankLost` if it cannot any more."""
        if arrives(count, value, SLICE_MS):
            return
        watched = Watched(rank, self.pid(rank))
        while not arrives(count, value, SLICE_MS):
            watched.look()


class Watched:
    """A rank that others wait for."""

    def __init__(self, rank: int, pid: int) -> None:
        self._rank, self._pid = rank, pid
        self._seen = ""
        self._idle = 0

    def look(self) -> None:
        """Raises `RankLost` if it is dead, or has neither computed nor waited for a core for a while. A slice counts
        as one however long it took: a rank that was halted together with the other does not blame it."""
        try:
            state = state_of(self._pid)
            seen = Path(f"/proc/{self._pid}/schedstat").read_text()
        except OSError:
            state, seen = "Z", ""
        if state in "ZX":
            raise RankLost(self._rank, self._pid, "has died")
        self._idle = self._idle + 1 if seen == self._seen and state not in "RD" else 0
        self._seen = seen
        if self._idle >= HUNG_SLICES:
            raise RankLost(self._rank, self._pid, "hangs")


def bytes_of(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor, uint8."""
    return tensor.view(-1).view(torch.uint8)
