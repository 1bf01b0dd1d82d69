"""Ranks on GPUs of one host, whose kernels read and write each other's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from octavo_kernels import operands
from octavo_kernels.exchange.gpus import Exchange
from octavo_worker.ranks.memory import RankLost, RankMemory
from octavo_worker.ranks.rank import Rank
from octavo_worker.ranks.watch import Watch


class CudaGroup:
    """A `Group` over an `Exchange`: its calls launch kernels on the current stream, which graphs may capture.

    A kernel waits for those of the other ranks. It gives up when `abandon` says so, and after
    some seconds by itself; from then on `verify` raises `RankLost`.
    """

    fuses_norms = True

    def __init__(self, memory: RankMemory, rank: Rank, exchange: Exchange, part_bytes: int) -> None:
        """`part_bytes`: the exchange's room for what a rank adds or gathers at once."""
        self.rank, self.memory = rank, memory
        self._exchange, self._part_bytes = exchange, part_bytes
        self._lost: RankLost | None = None

    @property
    def handle(self) -> bytes:
        return self._exchange.handle

    def connect(self, handles: Sequence[bytes]) -> None:
        """Opens the memory of all ranks. Raises `ExchangeError`."""
        self._exchange.connect(handles)

    def check(self) -> None:
        self._exchange.check()

    def watch(self, lost: Callable[[RankLost], None] | None = None) -> Watch:
        """Looks at the ranks that this one is to notice from now on: the first at all others, those at the first.
        `lost` is called besides."""
        others = [0] if self.rank.index else list(range(1, self.rank.count))

        def end(error: RankLost) -> None:
            self._lost = error
            self.abandon()
            if lost is not None:
                lost(error)

        return Watch(self.memory, others, end)

    def abandon(self) -> None:
        """From any thread: ends all waiting of this rank's kernels, for good."""
        self._exchange.abort()

    def verify(self) -> None:
        """Checks that all ranks took part so far. Raises `RankLost`."""
        if self._lost is not None:
            raise self._lost
        if self._exchange.lost():
            raise RankLost(None, None, "did not come to an exchange in time; see what it last wrote")

    def addend(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        return self._exchange.addend(rows, columns, dtype)

    def add(
        self,
        addend: Tensor,
        out: Tensor,
        residual: Tensor | None = None,
        norm: operands.RmsNorm | None = None,
        normed: Tensor | None = None,
    ) -> None:
        self._exchange.add(addend, out, residual, norm, normed)

    def gather(self, mine: Tensor) -> Tensor:
        mine = mine.contiguous()
        gathered = mine.new_empty((self.rank.count, *mine.shape))
        room = self._part_bytes // mine.itemsize
        if not mine.numel():
            return gathered
        if mine.numel() <= room:
            self._exchange.gather(mine, gathered)
            return gathered
        flat = gathered.view(self.rank.count, -1)
        for some, target in zip(mine.view(-1).split(room), flat.split(room, dim=1), strict=True):
            piece = mine.new_empty((self.rank.count, len(some)))
            self._exchange.gather(some, piece)
            target.copy_(piece)
        return gathered
