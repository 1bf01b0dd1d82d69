"""Arguments and results of a checkpoint's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.header import Place
from octavo_worker.model.checkpoint.source import Cut, WeightSource
from octavo_worker.model.layers.linear import Linear, Products


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads tensors of `source` into new ones of the model's type on its device."""

    source: WeightSource
    dtype: torch.dtype
    device: torch.device
    products: Products

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def read(self, name: str, *shape: int) -> Tensor:
        tensor = self.empty(*shape)
        self.source.read(name, tensor)
        return tensor

    def raw(self, name: str, place: Place, cut: Cut | None = None) -> Tensor:
        """A tensor, or a cut of it, as it is stored. Its values are there once the source has been waited for."""
        shape = place.shape if cut is None else cut.held
        tensor = torch.empty(shape, dtype=place.dtype, device=self.device)
        self.source.read(name, tensor, cut=cut)
        return tensor

    def bias(self, matrix: Matrix) -> Tensor:
        """The `.bias` of all parts, one after the other."""
        whole = self.empty(sum(matrix.held_rows))
        for part, target in zip(matrix.parts, whole.split(matrix.held_rows), strict=True):
            self.source.read(f"{part.names[0]}.bias", target, cut=part.bias_cut)
        return self.ordered(whole, matrix)

    def ordered(self, stored: Tensor, matrix: Matrix) -> Tensor:
        """Rows of all parts in the order in which the model computes them."""
        order = matrix.row_order(self.device)
        if order is None:
            return stored
        self.source.wait()
        return stored[order]


@dataclass(frozen=True, slots=True)
class Held:
    """A rank's share of a matrix: of each of its parts ranges of the rows, one after the other, and a range of the
    depth."""

    rows: Sequence[Sequence[range]]
    depth: range


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of the model: `names` of the parts that it is stacked from, without `.weight` and `.bias`, and the
    `rows` of each. A `transposed` one is stored `[depth, rows]`. Of a model on several ranks a Linear has what is
    `held` of it. `orders` has for each part the stored place of each row of a head, None where rows stay as they are;
    empty: all parts do."""

    names: Sequence[str]
    rows: Sequence[int]
    depth: int
    biased: bool = False
    transposed: bool = False
    held: Held | None = None
    orders: Sequence[Sequence[int] | None] = ()

    @property
    def parts(self) -> list[Matrix]:
        """Each part as a matrix of its own."""
        held = [None] * len(self.names) if self.held is None else [Held([r], self.held.depth) for r in self.held.rows]
        each = zip(self.names, self.rows, held, self.orders or [None] * len(self.names), strict=True)
        return [
            Matrix([name], [rows], self.depth, self.biased, self.transposed, part, () if order is None else [order])
            for name, rows, part, order in each
        ]

    @property
    def held_rows(self) -> list[int]:
        """Rows held of each part."""
        return list(self.rows) if self.held is None else [sum(map(len, ranges)) for ranges in self.held.rows]

    def row_order(self, device: torch.device) -> Tensor | None:
        """The stored place of each row that is held, among these; None: they stay as they are."""
        if not self.orders:
            return None
        starts = accumulate(self.held_rows, initial=0)
        places = [_places(*each) for each in zip(starts, self.held_rows, self.orders, strict=False)]
        return torch.cat(places).to(device)

    @property
    def held_depth(self) -> int:
        return self.depth if self.held is None else len(self.held.depth)

    @property
    def cut(self) -> Cut | None:
        """The share of all parts as one matrix; None: all of it."""
        if self.held is None:
            return None
        starts = accumulate(self.rows, initial=0)
        rows = [
            range(at + r.start, at + r.stop) for at, part in zip(starts, self.held.rows, strict=False) for r in part
        ]
        return Cut((sum(self.rows), self.depth), rows, self.held.depth)

    @property
    def bias_cut(self) -> Cut | None:
        return None if (cut := self.cut) is None else Cut(cut.shape[:1], cut.rows)


def _places(start: int, rows: int, order: Sequence[int] | None) -> Tensor:
    """The order repeated for each head of `rows`, which begin at `start`."""
    if order is None:
        return torch.arange(start, start + rows)
    heads = torch.arange(start, start + rows, len(order))
    return (heads[:, None] + torch.tensor(order)).flatten()


class Format(Protocol):
    """Builds the layer that computes with a matrix. A dense one is read part by part into the rows of what its Linear
    stores. A quantised one may be held twice while it is turned into what the kernels read, but one at a time.

    A quantised checkpoint keeps some matrices dense, so a format decides for each of them, by the config and by what
    the reader's source has under its names.
    """

    def linear(self, matrix: Matrix, reader: Reader) -> Linear: ...
