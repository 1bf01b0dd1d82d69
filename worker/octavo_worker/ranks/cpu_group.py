"""Ranks in processes of one host that meet in memory they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels import operands
from octavo_kernels.exchange.ranks import post, sum_parts
from octavo_worker.ranks.memory import RankMemory, bytes_of
from octavo_worker.ranks.rank import Rank

MOST_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Views:
    """Slots as matrices: `all[ranks, rows, columns]`, of which `mine` is this rank's."""

    all: Tensor
    mine: Tensor


class CpuGroup:
    """A `Group` whose ranks write into slots of their own, wait until all have, and read all slots. There are two sets
    of slots, used in turn: a rank that writes the next but one has seen that all have read this one."""

    fuses_norms = False
    handle = b""

    def __init__(self, memory: RankMemory, rank: Rank) -> None:
        self.rank = rank
        self.memory = memory
        self._turn = 0
        self._kept: dict[tuple[int, int, int, torch.dtype], Views] = {}
        self._others = [index for index in range(rank.count) if index != rank.index]

    def connect(self, handles: Sequence[bytes]) -> None:
        """Nothing to connect: the ranks share their memory from the start."""

    def check(self) -> None:
        """Nothing to check: processes read what others write."""

    def verify(self) -> None:
        """Every call has."""

    def addend(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        room = self.memory.slots.shape[2] // (columns * dtype.itemsize)
        return self._views(self._turn + 1, min(rows, room), columns, dtype).mine

    def add(
        self,
        addend: Tensor,
        out: Tensor,
        residual: Tensor | None = None,
        norm: operands.RmsNorm | None = None,
        normed: Tensor | None = None,
    ) -> None:
        assert norm is None, "products fuse the norm of what they read"
        self._meet()
        rows, columns = addend.shape
        sum_parts(self._views(self._turn, rows, columns, addend.dtype).all, out, residual)

    def gather(self, mine: Tensor) -> Tensor:
        octets, room = bytes_of(mine.contiguous()), self.memory.slots.shape[2]
        gathered = torch.empty((self.rank.count, mine.numel()), dtype=mine.dtype)
        for some, target in zip(octets.split(room), gathered.view(torch.uint8).split(room, dim=1), strict=True):
            self._slots(self._turn + 1)[self.rank.index, : len(some)] = some
            self._meet()
            target.copy_(self._slots(self._turn)[:, : len(some)])
        return gathered.view(self.rank.count, *mine.shape)

    def _views(self, turn: int, rows: int, columns: int, dtype: torch.dtype) -> Views:
        """Kept, since making them takes longer than a small sum."""
        key = turn % 2, rows, columns, dtype
        if key not in self._kept:
            if len(self._kept) == MOST_KEPT:
                self._kept.clear()
            slots = self._slots(turn).view(dtype)[:, : rows * columns].unflatten(1, (rows, columns))
            self._kept[key] = Views(slots, slots[self.rank.index])
        return self._kept[key]

    def _slots(self, turn: int) -> Tensor:
        return self.memory.slots[turn % 2]

    def _meet(self) -> None:
        self._turn += 1
        post(self.memory.arrived(self.rank.index), self._turn % (1 << 32))
        for other in self._others:
            self.memory.wait(self.memory.arrived(other), self._turn % (1 << 32), other)
