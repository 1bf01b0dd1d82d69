"""A linear layer whose weight is quantised."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Gate
from octavo_kernels.weights import Activations, PackedWeight, Scheme
from octavo_worker.model.layers.linear import Linear, Products
from octavo_worker.model.layers.norm import Input


@dataclass(frozen=True, slots=True, eq=False)
class Quantised(Linear):
    """A packed weight, and `bias[columns]` in the type of the activations."""

    weight: PackedWeight
    bias: Tensor | None
    products: Products

    @property
    def forms(self) -> frozenset[str]:
        return frozenset({form_of(self.weight.scheme, self.weight.depth)})

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        uniform = self.products.uniform
        return ops.quantised_linear(x.rows, self.weight, self.bias, out, residual, x.norm, x.normed, uniform)

    def gated(self, x: Input, kind: Gate, out: Tensor, scratch: Tensor) -> Tensor:
        uniform = self.products.uniform
        return ops.quantised_gated_linear(x.rows, self.weight, kind, self.bias, out, scratch, x.norm, x.normed, uniform)


def form_of(scheme: Scheme, depth: int) -> str:
    """Such as `int4g128`: four bits, 128 codes a scale; `fp8 by fp8`: a scale a row, and activations likewise."""
    codes, group, activations, activation_group = scheme
    stored = codes.name.lower() + (f"g{group}" if group < depth else "")
    if activations is Activations.AS_GIVEN:
        return stored
    return f"{stored} by {activations.name.lower()}" + (f"g{activation_group}" if activation_group else "")
