"""Norms, alone and between the sublayers of a transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo_kernels import operands, ops
from octavo_kernels.ops import Addend
from octavo_worker.model.layers.buffers import Buffers


@dataclass(frozen=True, slots=True)
class Input:
    """The operand of a product: `rows[T, depth]`, or their RMS norm if there is a `norm`. The product fuses that norm
    where a kernel does; elsewhere the normalised rows are stored in `normed`. `context[T]` (int32) is what rows have
    beside their hidden states (`SequenceStep.row_context`), where a Linear of the model reads it. `slots[T]` (int64)
    are rows' places in the cache, -1 of padding; None where that is not known."""

    rows: Tensor
    norm: operands.RmsNorm | None = None
    normed: Tensor | None = None
    context: Tensor | None = None
    slots: Tensor | None = None

    def materialise(self) -> Tensor:
        if self.norm is None:
            return self.rows
        return ops.rms_norm(self.rows, self.norm.weight, self.norm.eps, out=self.normed, offset=self.norm.offset)


class Norm(Protocol):
    def apply(self, x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        """The norm of the rows of `x`. With `residual`: residual += x in place, and the norm of that."""
        ...

    def defer(self, x: Tensor, out: Tensor, context: Tensor | None = None) -> Input:
        """The norm of the rows of `x` for a product, which may fuse it."""
        ...


class RmsNorm:
    """Weights are stored as scale minus `offset`."""

    def __init__(self, weight: Tensor, eps: float, offset: float) -> None:
        self.operand = operands.RmsNorm(weight, eps, offset)

    def apply(self, x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        norm = self.operand
        return ops.rms_norm(x, norm.weight, norm.eps, out=out, residual=residual, offset=norm.offset)

    def defer(self, x: Tensor, out: Tensor, context: Tensor | None = None) -> Input:
        return Input(x, self.operand, out, context)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    weight: Tensor
    bias: Tensor
    eps: float

    def apply(self, x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps, out=out, residual=residual)

    def defer(self, x: Tensor, out: Tensor, context: Tensor | None = None) -> Input:
        return Input(self.apply(x, out), context=context)


@dataclass(frozen=True, slots=True)
class AddNorm:
    """The step between two sublayers: `hidden = scalar[1] * (hidden + multiplier * post_norm(delta))`, where `delta` is
    the output of the first, then the `norm` in front of the second. Either norm may be absent, and the scalar."""

    norm: Norm | None
    post_norm: RmsNorm | None = None
    multiplier: float = 1.0
    scalar: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """True if `delta` is added as it is, so that a product can add itself to the residual stream."""
        return self.is_multiple and self.multiplier == 1.0

    @property
    def is_multiple(self) -> bool:
        """True if a multiple of `delta` is added."""
        return self.post_norm is None and self.scalar is None

    def after_sum(self, b: Buffers) -> Input:
        """The second sublayer's input, where `b.hidden` is already the sum."""
        if self.norm is None:
            return Input(b.hidden, context=b.row_context)
        return self.norm.defer(b.hidden, b.normed, b.row_context)

    def add(self, b: Buffers, *addends: Addend) -> Input:
        """The second sublayer's input; `delta` is the sum of the addends. Overwrites them."""
        norm = self.norm.operand if isinstance(self.norm, RmsNorm) else None
        post = None if self.post_norm is None else self.post_norm.operand
        ops.add_norms(b.hidden, addends, post=post, factor=self.multiplier, scalar=self.scalar, norm=norm, out=b.normed)
        return self.after_sum(b) if norm is None else Input(b.normed, context=b.row_context)
