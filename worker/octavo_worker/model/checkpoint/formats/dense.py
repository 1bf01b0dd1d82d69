"""Matrices in floating point."""

from __future__ import annotations

from torch import Tensor

from octavo_worker.model.checkpoint.formats.base import Matrix, Reader
from octavo_worker.model.layers.linear import Dense


class DenseFormat:
    """One `.weight` in floating point a part."""

    def linear(self, matrix: Matrix, reader: Reader) -> Dense:
        weight = reader.empty(sum(matrix.rows), matrix.depth)
        self.read(matrix, reader, weight)
        return Dense(weight, self.bias(matrix, reader), reader.products)

    def read(self, matrix: Matrix, reader: Reader, weight: Tensor) -> None:
        """Each part into its rows of `weight[columns, depth]`."""
        for name, part in zip(matrix.names, weight.split(list(matrix.rows)), strict=True):
            reader.source.read(f"{name}.weight", part, matrix.transposed)

    def bias(self, matrix: Matrix, reader: Reader) -> Tensor | None:
        """Those of all parts, `[columns]`."""
        if not matrix.biased:
            return None
        bias = reader.empty(sum(matrix.rows))
        for name, part in zip(matrix.names, bias.split(list(matrix.rows)), strict=True):
            reader.source.read(f"{name}.bias", part)
        return bias
