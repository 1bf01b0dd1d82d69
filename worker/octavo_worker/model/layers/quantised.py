"""A linear layer whose weight is quantised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Experts, Gate, Product
from octavo_kernels.products.coded import CodedWeight
from octavo_kernels.products.weights import Activations, PackedWeight, Scheme
from octavo_worker.model.layers.linear import Linear, Products
from octavo_worker.model.layers.norm import Input


@dataclass(slots=True, eq=False)
class Quantised(Linear):
    """A packed weight, and `bias[columns]` in `dtype`, that of the activations."""

    weight: PackedWeight
    bias: Tensor | None
    products: Products
    dtype: torch.dtype
    copy: Tensor | None = None

    @property
    def forms(self) -> frozenset[str]:
        return frozenset({form_of(self.weight.scheme, self.weight.depth)})

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    @property
    def copy_bytes(self) -> int:
        copied = not self.products.uniform and self.dtype.itemsize == 2 and ops.takes_copy(self.weight)
        return self.weight.columns * self.weight.depth * 2 if copied else 0

    def keep_copy(self) -> None:
        if self.copy_bytes:
            self.copy = ops.copy_of(self.weight, self.dtype)

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        return ops.linear(self._product(x, out, residual))

    def gated(self, x: Input, kind: Gate, out: Tensor, scratch: Tensor) -> Tensor:
        return ops.gated_linear(self._product(x, out), kind, scratch)

    def grouped(self, x: Tensor, starts: Tensor) -> Tensor:
        return ops.grouped_linear(x, self.weight, starts, self.bias)

    def _product(self, x: Input, out: Tensor | None, residual: Tensor | None = None) -> Product[PackedWeight]:
        uniform = self.products.uniform
        return Product(
            x.rows, self.weight, self.bias, out=out, residual=residual, norm=x.norm, normed=x.normed, uniform=uniform,
            copy=self.copy,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class CodedExperts(Linear):
    """Matrices of several experts, one below the other, as a GPU's kernels read their codes, and `bias[columns]` in the
    type of the activations."""

    weight: CodedWeight
    bias: Tensor | None

    @property
    def forms(self) -> frozenset[str]:
        return frozenset({form_of(self.weight.scheme, self.weight.depth)})

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        raise NotImplementedError("matrices of several experts are no single product")

    def experts(self) -> Experts:
        return Experts(self.weight, self.bias)


def form_of(scheme: Scheme, depth: int) -> str:
    """Such as `int4g128`: four bits, 128 codes a scale; `fp8 by fp8`: a scale a row, and activations likewise."""
    codes, group, activations, activation_group = scheme
    stored = codes.name.lower() + (f"g{group}" if group < depth else "")
    if activations is Activations.AS_GIVEN:
        return stored
    return f"{stored} by {activations.name.lower()}" + (f"g{activation_group}" if activation_group else "")
