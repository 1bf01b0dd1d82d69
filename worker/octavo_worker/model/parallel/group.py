"""What layers and the sampler ask of the ranks of a model together."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from octavo_worker.model.parallel.memory import RankMemory
from octavo_worker.model.parallel.shards import Rank


class Group(Protocol):
    """Ranks that meet in the same calls in the same order, with tensors of the same shapes. What they get has the same
    bits on all of them. Every call raises `RankLost` when another rank cannot come."""

    rank: Rank
    memory: RankMemory

    def addend(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Memory for this rank's part of the next sum: `[rows, columns]`, or fewer rows, the same number on each."""
        ...

    def add(self, addend: Tensor, out: Tensor, residual: Tensor | None = None) -> None:
        """The addends of all ranks, in their order, and the residual (which may be `out`), summed in float32."""
        ...

    def gather(self, mine: Tensor) -> Tensor:
        """What each rank has: `[ranks, *mine.shape]`."""
        ...
