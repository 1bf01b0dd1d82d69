"""Inputs of layers beside the hidden states, and the end of a block that takes them, as in Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Gate
from octavo_worker.model.layers.block import Block
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import AddNorm, Input, RmsNorm


@dataclass(frozen=True, slots=True, eq=False)
class InputTable:
    """Inputs of all layers, `width` columns each: of a token's row of the `table[tokens, layers * width]` and of the
    `norm` of a `product` with its embedding."""

    table: Tensor
    product: Linear
    norm: RmsNorm
    width: int

    def of(self, token_ids: Tensor, embedded: Tensor) -> Tensor:
        """Inputs of `token_ids[T]` with the embeddings `embedded[T, hidden]`: `[T, layers * width]`."""
        made = self.product.apply(Input(embedded)).mul_(embedded.shape[1] ** -0.5)
        columns = made.view(-1, self.width)
        self.norm.apply(columns, columns)
        rounded = torch.tensor(self.width**0.5, dtype=made.dtype).item()  # as the model was trained
        return made.add_(self.table[token_ids].mul_(rounded)).mul_(2**-0.5)


@dataclass(frozen=True, slots=True, eq=False)
class InputAdder:
    """The sublayer that adds what it makes of the layer's own `columns` of the inputs: times a gate of the hidden
    states, multiplied and normed."""

    gate: Linear
    out: Linear
    norm: RmsNorm
    activation: Gate
    columns: slice

    def add(self, b: Buffers) -> None:
        """To the residual stream."""
        assert b.inputs is not None
        made = ops.act(self.gate.apply(Input(b.hidden, context=b.row_context)), self.activation)
        delta = self.out.apply(Input(made.mul_(b.inputs[:, self.columns]), context=b.row_context), b.delta)
        self.norm.apply(delta, delta)
        b.hidden.add_(delta)


@dataclass(frozen=True, slots=True)
class ScaledBlock(Block):
    """A block that adds its input of the layer, if there is one, behind the MLP, and multiplies what it gives by a
    `scalar[1]`. `mlp_end` has no norm: the next block's is that of `end`."""

    end: AddNorm
    scalar: Tensor
    adder: InputAdder | None = None

    def products(self) -> Mapping[str, Linear]:
        named = {**self.attention.products(), **self.mlp.products()}
        return named if self.adder is None else {**named, "input gate": self.adder.gate, "input": self.adder.out}

    def _after_attention(self, b: Buffers) -> Input:
        self.mlp.into_norm(self.attention.into_norm(b, self.attention_end), b, self.mlp_end)
        if self.adder is not None:
            self.adder.add(b)
        b.hidden.mul_(self.scalar)
        return self.end.after_sum(b)
