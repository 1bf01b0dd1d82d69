"""A matrix whose parts are stored in unlike forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import Input


@dataclass(frozen=True, slots=True, eq=False)
class Parts(Linear):
    """The products of `parts`, of so many columns each, side by side: one after the other, each into its slice."""

    parts: Sequence[Linear]
    columns: Sequence[int]

    @property
    def forms(self) -> frozenset[str]:
        return frozenset().union(*(part.forms for part in self.parts))

    @property
    def is_mixed(self) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def reads_context(self) -> bool:
        return any(part.reads_context for part in self.parts)

    @property
    def copy_bytes(self) -> int:
        return sum(part.copy_bytes for part in self.parts)

    def keep_copy(self) -> None:
        for part in self.parts:
            part.keep_copy()

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        rows, columns = x.materialise(), list(self.columns)
        if out is None:
            out = rows.new_empty(len(rows), sum(columns))
        added = residual.split(columns, dim=1) if residual is not None else [None] * len(columns)
        for part, target, addend in zip(self.parts, out.split(columns, dim=1), added, strict=True):
            part.apply(Input(rows, context=x.context), target, addend)
        return out
