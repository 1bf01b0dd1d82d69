"""What a format of checkpoints is given, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.header import Place
from octavo_worker.model.checkpoint.source import WeightSource
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

    def raw(self, name: str, place: Place) -> Tensor:
        """A tensor as it is stored. Its values are there once the source has been waited for."""
        tensor = torch.empty(place.shape, dtype=place.dtype, device=self.device)
        self.source.read(name, tensor)
        return tensor

    def bias(self, names: Sequence[str], rows: Sequence[int]) -> Tensor:
        """The `.bias` of all parts, one after the other."""
        whole = self.empty(sum(rows))
        for name, part in zip(names, whole.split(list(rows)), strict=True):
            self.source.read(f"{name}.bias", part)
        return whole


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of the model: `names` of the parts that it is stacked from, without `.weight` and `.bias`, and the
    `rows` of each. A `transposed` one is stored `[depth, rows]`."""

    names: Sequence[str]
    rows: Sequence[int]
    depth: int
    biased: bool = False
    transposed: bool = False

    @property
    def parts(self) -> list[Matrix]:
        """Each part as a matrix of its own."""
        pairs = zip(self.names, self.rows, strict=True)
        return [Matrix([name], [rows], self.depth, self.biased, self.transposed) for name, rows in pairs]


class Format(Protocol):
    """Builds the layer that computes with a matrix. A dense one is read part by part into the rows of what its Linear
    stores. A quantised one may be held twice while it is turned into what the kernels read, but one at a time.

    A quantised checkpoint keeps some matrices dense, so a format decides for each of them, by the config and by what
    the reader's source has under its names.
    """

    def linear(self, matrix: Matrix, reader: Reader) -> Linear: ...
