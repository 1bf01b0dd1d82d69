"""Matrix products of the rows of a batch with weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from octavo_kernels import dense, quantised
from octavo_kernels.activation import Gate
from octavo_kernels.product import Product
from octavo_kernels.weights import PackedWeight


def linear(p: Product[Any]) -> Tensor:
    """The product, `[T, N]` in the type of x, summed in float32, or exactly where both sides are codes of integers.

    Weights are taken in checkpoint order, or packed. On CUDA, with up to 64 rows, they are read from before the
    stream's previous kernel has ended: they must be older than it; `uniform` products do so with any number of rows.
    Raises `TypeError` or `ValueError`, naming the operand, for one that does not fit.
    """
    return quantised.linear(p) if isinstance(p.weight, PackedWeight) else dense.linear(p)


def gated_linear(p: Product[Any], kind: Gate, scratch: Tensor | None = None) -> Tensor:
    """`act_and_mul(linear(p), kind)`, `[T, N / 2]`, for a weight whose first half is the gate. There is no `residual`.

    If not `uniform`, on CUDA one launch with the same roundings where `linear` is ours, and on Hopper with more rows
    where that is faster: there, too, weights must be older than the stream's previous kernel. `scratch[T, N]` is where
    the product goes if it has to be stored.
    """
    if isinstance(p.weight, PackedWeight):
        return quantised.gated_linear(p, kind, scratch)
    return dense.gated_linear(p, kind, scratch)
