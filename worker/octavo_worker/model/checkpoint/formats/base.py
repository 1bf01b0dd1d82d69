"""What a format of checkpoints is given, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

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


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of the model: `names` of the parts that it is stacked from, without `.weight` and `.bias`, and the
    `rows` of each. A `transposed` one is stored `[depth, rows]`."""

    names: Sequence[str]
    rows: Sequence[int]
    depth: int
    biased: bool = False
    transposed: bool = False


class Format(Protocol):
    """Builds the layer that computes with a matrix: allocates what that kind of Linear stores, and has each part of the
    matrix read into its rows, so that nothing is held twice.

    A quantised checkpoint keeps some matrices dense, so a format decides for each of them, by the config and by what
    the reader's source has under its names.
    """

    def linear(self, matrix: Matrix, reader: Reader) -> Linear: ...
