"""Matrices in floating point."""

from __future__ import annotations

from torch import Tensor

from octavo_worker.model.checkpoint.formats.base import Matrix, Reader
from octavo_worker.model.layers.linear import Dense


class DenseFormat:
    """One `.weight` in floating point a part."""

    def linear(self, matrix: Matrix, reader: Reader) -> Dense:
        weight = reader.empty(sum(matrix.rows), matrix.depth)
        read_parts(matrix, reader, weight)
        bias = reader.bias(matrix.names, matrix.rows) if matrix.biased else None
        return Dense(weight, bias, reader.products)


def read_parts(matrix: Matrix, reader: Reader, weight: Tensor) -> None:
    """Each part into its rows of `weight[columns, depth]`."""
    for name, part in zip(matrix.names, weight.split(list(matrix.rows)), strict=True):
        reader.source.read(f"{name}.weight", part, matrix.transposed)
