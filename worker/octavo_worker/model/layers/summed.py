"""A matrix that is split by its depth among the ranks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import Input
from octavo_worker.model.parallel.group import Group


@dataclass(frozen=True, slots=True, eq=False)
class Summed(Linear):
    """`part` has some of the depth and all `columns`; products of all ranks are summed in their order, before the
    residual is added. Each goes where the sum reads it."""

    part: Linear
    columns: int
    group: Group

    @property
    def forms(self) -> frozenset[str]:
        return self.part.forms

    @property
    def nbytes(self) -> int:
        return self.part.nbytes

    @property
    def copy_bytes(self) -> int:
        return self.part.copy_bytes

    def keep_copy(self) -> None:
        self.part.keep_copy()

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        rows = x.materialise()
        if out is None:
            out = rows.new_empty(len(rows), self.columns)
        done = 0
        while done < len(rows):
            addend = self.group.addend(len(rows) - done, self.columns, rows.dtype)
            some = slice(done, done + len(addend))
            self.part.apply(Input(rows[some]), addend)
            self.group.add(addend, out[some], None if residual is None else residual[some])
            done += len(addend)
        return out
