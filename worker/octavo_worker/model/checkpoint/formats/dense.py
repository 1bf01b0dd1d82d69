"""Matrices in floating point."""

from __future__ import annotations

from torch import Tensor

from octavo_worker.model.checkpoint.formats.base import Matrix, Reader
from octavo_worker.model.layers.linear import Dense


class DenseFormat:
    """One `.weight` in floating point a part."""

    def linear(self, matrix: Matrix, reader: Reader) -> Dense:
        weight = reader.empty(sum(matrix.held_rows), matrix.held_depth)
        read_parts(matrix, reader, weight)
        bias = reader.bias(matrix) if matrix.biased else None
        return Dense(reader.ordered(weight, matrix), bias, reader.products)


def read_parts(matrix: Matrix, reader: Reader, weight: Tensor) -> None:
    """Reads the held share of each part into its rows of `weight[columns, depth]`."""
    for part, target in zip(matrix.parts, weight.split(matrix.held_rows), strict=True):
        reader.source.read(f"{part.names[0]}.weight", target, matrix.transposed, part.cut)
