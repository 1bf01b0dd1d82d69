"""How a checkpoint stores its matrices, and which kind of `Linear` each of them becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.source import WeightSource
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.model.layers.linear import Dense, Linear, Products


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


class DenseFormat:
    """One `.weight` in floating point a part."""

    def linear(self, matrix: Matrix, reader: Reader) -> Dense:
        columns = sum(matrix.rows)
        weight = reader.empty(columns, matrix.depth)
        for name, part in zip(matrix.names, weight.split(list(matrix.rows)), strict=True):
            reader.source.read(f"{name}.weight", part, matrix.transposed)
        bias = reader.empty(columns) if matrix.biased else None
        if bias is not None:
            for name, part in zip(matrix.names, bias.split(list(matrix.rows)), strict=True):
                reader.source.read(f"{name}.bias", part)
        return Dense(weight, bias, reader.products)


def format_of(config: ModelConfig, folder: Path) -> Format:
    """The format of the checkpoint in `folder`. Raises `UnsupportedModel` if no kind of Linear computes with it."""
    if getattr(config, "quantization_config", None):
        raise UnsupportedModel(f"{folder} is quantised; give the checkpoint in bfloat16, float16 or float32.")
    return DenseFormat()
