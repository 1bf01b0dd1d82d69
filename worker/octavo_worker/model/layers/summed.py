"""A matrix that is split by its depth among the ranks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo_kernels import operands
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import AddNorm, Input, RmsNorm
from octavo_worker.ranks.group import Group


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
    def reads_context(self) -> bool:
        return self.part.reads_context

    @property
    def copy_bytes(self) -> int:
        return self.part.copy_bytes

    def keep_copy(self) -> None:
        self.part.keep_copy()

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        rows = x.materialise()
        if out is None:
            out = rows.new_empty(len(rows), self.columns)
        self._add(rows, x, out, residual)
        return out

    def into_norm(self, x: Input, b: Buffers, add_norm: AddNorm) -> Input:
        norm = add_norm.norm
        if not (self.group.fuses_norms and add_norm.is_plain and isinstance(norm, RmsNorm)):
            return Linear.into_norm(self, x, b, add_norm)
        self._add(x.materialise(), x, b.hidden, b.hidden, norm.operand, b.normed)
        return Input(b.normed, context=b.row_context)

    def _add(
        self,
        rows: Tensor,
        x: Input,
        out: Tensor,
        residual: Tensor | None,
        norm: operands.RmsNorm | None = None,
        normed: Tensor | None = None,
    ) -> None:
        """As many rows at a time as the ranks have room for. They are those of `x`, normed."""
        done = 0
        while done < len(rows):
            addend = self.group.addend(len(rows) - done, self.columns, rows.dtype)
            some = slice(done, done + len(addend))
            context, slots = (None if tensor is None else tensor[some] for tensor in (x.context, x.slots))
            self.part.apply(Input(rows[some], context=context, slots=slots), addend)
            targets = [None if tensor is None else tensor[some] for tensor in (residual, normed)]
            self.group.add(addend, out[some], targets[0], norm, targets[1])
            done += len(addend)
