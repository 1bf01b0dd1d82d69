"""Collective operations of a model's ranks, for its layers and the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from octavo_kernels import operands
from octavo_worker.ranks.memory import RankMemory
from octavo_worker.ranks.rank import Rank


class Group(Protocol):
    """Ranks that meet in the same calls in the same order, with tensors of the same shapes. What they get has the same
    bits on all of them. Where ranks wait for each other on the CPU, every call raises `RankLost` when another one
    cannot come; where their GPUs do, `verify` tells.

    `handle` is what the other ranks need in `connect`, which every rank calls with those of all; `check` comes next,
    on all ranks at once, and tries whether they reach each other. `fuses_norms`: whether `add` takes norms.
    """

    rank: Rank
    memory: RankMemory
    fuses_norms: bool

    @property
    def handle(self) -> bytes: ...

    def connect(self, handles: Sequence[bytes]) -> None: ...

    def check(self) -> None: ...

    def verify(self) -> None:
        """Raises `RankLost` if a rank did not come to an exchange that has ended: what it gave is worth nothing."""
        ...

    def addend(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Memory for this rank's part of the next sum: `[rows, columns]`, or fewer rows, the same number on each."""
        ...

    def add(
        self,
        addend: Tensor,
        out: Tensor,
        residual: Tensor | None = None,
        norm: operands.RmsNorm | None = None,
        normed: Tensor | None = None,
    ) -> None:
        """The addends of all ranks, in their order, and the residual (which may be `out`), summed in float32. With a
        `norm` the RMS norm of `out` goes into `normed`."""
        ...

    def gather(self, mine: Tensor) -> Tensor:
        """The tensors of all ranks: `[ranks, *mine.shape]`."""
        ...
