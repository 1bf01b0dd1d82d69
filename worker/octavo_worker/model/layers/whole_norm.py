"""Norms over all heads of queries, and over all of keys, together, as OLMo 2 and MiniMax M2 have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_worker.model.layers.norm import RmsNorm
from octavo_worker.ranks.group import Group


@dataclass(frozen=True, slots=True)
class HeldColumns:
    """Where a rank's heads stand in a whole row, and the ranks whose parts make up that row: each `every` so many, as
    several may hold the same head."""

    own: range
    every: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class WholeNorms:
    """The norms of queries and, where a layer has some, of keys. Of ranks that have a part of the heads each sees whole
    rows, so that a row's norm has the bits that it has on one rank."""

    norms: Sequence[RmsNorm]
    group: Group | None = None
    held: Sequence[HeldColumns] = ()

    def step_bytes(self, rows: int) -> int:
        """Bytes of what ranks gather and norm of so many rows."""
        if self.group is None:
            return 0
        weights = [norm.operand.weight for norm in self.norms]
        gathered = sum(len(held.own) for held in self.held) * (1 + self.group.rank.count)
        return rows * (gathered + max(map(len, weights))) * weights[0].itemsize

    def apply(self, parts: Sequence[Tensor]) -> None:
        """Overwrites queries and keys, `parts[n][T, columns of this rank]`."""
        parts = parts[: len(self.norms)]
        if self.group is None:
            for part, norm in zip(parts, self.norms, strict=True):
                norm.apply(part, part)
            return
        gathered = self.group.gather(torch.cat(list(parts), dim=1)).split([part.shape[1] for part in parts], dim=2)
        for part, norm, theirs, held in zip(parts, self.norms, gathered, self.held, strict=True):
            whole = theirs[:: held.every].transpose(0, 1).flatten(1)
            part.copy_(norm.apply(whole, whole)[:, held.own.start : held.own.stop])
