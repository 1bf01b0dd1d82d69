"""A checkpoint in floating point whose matrices are quantised as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from octavo_kernels import ops
from octavo_kernels.products.weights import Scheme
from octavo_worker.contract.options import OnlineQuantization
from octavo_worker.model.checkpoint.formats.base import Matrix, Reader
from octavo_worker.model.checkpoint.formats.cuts import cut_weight
from octavo_worker.model.checkpoint.formats.dense import DenseFormat, read_parts
from octavo_worker.model.checkpoint.rounding import quantised, scheme_of
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.quantised import Quantised


class OnlineFormat:
    """Reads each matrix into one buffer and quantises it from there, so that no more than the largest of them is held
    beside the model. A rank's rows are quantised by themselves, of a range of the depth the whole matrix is: scales are
    those of whole rows. The head, whose name is one of `heads`, stays as it is: it is often the embedding's table, and
    its errors reach the logits unweakened."""

    def __init__(self, kind: OnlineQuantization, heads: Sequence[str]) -> None:
        self._kind = kind
        self._heads = heads
        self._dense = DenseFormat()
        self._buffer = torch.empty(0)

    def scheme(self, matrix: Matrix) -> Scheme | None:
        """How a matrix is to be stored; None: as it is."""
        return None if matrix.names[0] in self._heads else scheme_of(self._kind, matrix.depth)

    def linear(self, matrix: Matrix, reader: Reader) -> Linear:
        if self.scheme(matrix) is None:
            return self._dense.linear(matrix, reader)
        cut = matrix.cut
        read = matrix if cut is None or cut.has_whole_rows else replace(matrix, held=None)
        columns = sum(read.held_rows)
        size = columns * matrix.depth
        if self._buffer.numel() < size:
            self._buffer = torch.empty(0)  # not two at a time
            self._buffer = reader.empty(size)
        weight = self._buffer[:size].view(columns, matrix.depth)
        read_parts(read, reader, weight)
        bias = reader.bias(matrix) if matrix.biased else None
        reader.source.wait()
        made = quantised(reader.ordered(weight, read), self._kind)
        if read is not matrix:
            made = cut_weight(matrix.names[0], made, cut)
        return Quantised(ops.pack(made), bias, reader.products, reader.dtype)
