"""A linear layer whose weight is quantised."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Gate
from octavo_kernels.weights import PackedWeight
from octavo_worker.model.layers.linear import Linear, Products
from octavo_worker.model.layers.norm import Input
from octavo_worker.model.schemes import name_of


@dataclass(frozen=True, slots=True, eq=False)
class Quantised(Linear):
    """A packed weight, and `bias[columns]` in the type of the activations."""

    weight: PackedWeight
    bias: Tensor | None
    products: Products

    @property
    def schemes(self) -> Set[str]:
        return {name_of(self.weight.scheme, self.weight.depth)}

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        uniform = self.products.uniform
        return ops.quantised_linear(x.rows, self.weight, self.bias, out, residual, x.norm, x.normed, uniform)

    def gated(self, x: Input, kind: Gate, out: Tensor, scratch: Tensor) -> Tensor:
        uniform = self.products.uniform
        return ops.quantised_gated_linear(x.rows, self.weight, kind, self.bias, out, scratch, x.norm, x.normed, uniform)
