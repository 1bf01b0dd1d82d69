"""Ranks in processes of one host that meet in memory they share."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.ranks import post, sum_parts
from octavo_worker.model.parallel.memory import RankMemory, bytes_of
from octavo_worker.model.parallel.shards import Rank


class CpuGroup:
    """A `Group` whose ranks write into slots of their own, wait until all have, and read all slots. There are two sets
    of slots, used in turn: a rank that writes the next but one has seen that all have read this one."""

    def __init__(self, memory: RankMemory, rank: Rank) -> None:
        self.rank = rank
        self.memory = memory
        self._turn = 0
        self._others = [index for index in range(rank.count) if index != rank.index]

    def addend(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        slot = self._slots(self._turn + 1)[self.rank.index].view(dtype)
        rows = min(rows, len(slot) // columns)
        return slot[: rows * columns].view(rows, columns)

    def add(self, addend: Tensor, out: Tensor, residual: Tensor | None = None) -> None:
        self._meet()
        parts = self._slots(self._turn).view(addend.dtype)[:, : addend.numel()]
        sum_parts(parts.unflatten(1, tuple(addend.shape)), out, residual)

    def gather(self, mine: Tensor) -> Tensor:
        octets, room = bytes_of(mine.contiguous()), self.memory.slots.shape[2]
        gathered = torch.empty((self.rank.count, mine.numel()), dtype=mine.dtype)
        for some, target in zip(octets.split(room), gathered.view(torch.uint8).split(room, dim=1), strict=True):
            self._slots(self._turn + 1)[self.rank.index, : len(some)] = some
            self._meet()
            target.copy_(self._slots(self._turn)[:, : len(some)])
        return gathered.view(self.rank.count, *mine.shape)

    def _slots(self, turn: int) -> Tensor:
        return self.memory.slots[turn % 2]

    def _meet(self) -> None:
        self._turn += 1
        post(self.memory.arrived(self.rank.index), self._turn % (1 << 32))
        for other in self._others:
            self.memory.wait(self.memory.arrived(other), self._turn % (1 << 32), other)
