"""Random weights in the schemes that a config states, for `--load-format dummy`."""

from __future__ import annotations

from octavo_kernels import ops
from octavo_kernels.products.weights import Scheme
from octavo_worker.model.checkpoint.formats.base import Matrix, Reader
from octavo_worker.model.checkpoint.formats.cuts import cut_weight
from octavo_worker.model.checkpoint.formats.dense import DenseFormat
from octavo_worker.model.checkpoint.formats.stored import Method, check_shape
from octavo_worker.model.checkpoint.source import RandomWeights
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.parts import Parts
from octavo_worker.model.layers.quantised import Quantised


class DrawnFormat:
    """Parts of one scheme become one weight, others stay apart."""

    def __init__(self, method: Method, source: RandomWeights) -> None:
        self.method, self.source = method, source

    def linear(self, matrix: Matrix, reader: Reader) -> Linear:
        schemes = [self.method.scheme(name, matrix.depth) for name in matrix.names]
        if not any(schemes):
            return DenseFormat().linear(matrix, reader)
        check_shape(matrix)
        if any(scheme != schemes[0] for scheme in schemes):
            return Parts([self.linear(part, reader) for part in matrix.parts], matrix.held_rows)
        return self._drawn(matrix, schemes[0], reader)

    def _drawn(self, matrix: Matrix, scheme: Scheme | None, reader: Reader) -> Linear:
        assert scheme is not None
        bias = reader.bias(matrix) if matrix.biased else None
        whole = self.source.quantised(scheme, sum(matrix.rows), matrix.depth)
        weight = cut_weight(matrix.names[0], whole, matrix.cut)
        return Quantised(ops.pack(weight), bias, reader.products, reader.dtype)
