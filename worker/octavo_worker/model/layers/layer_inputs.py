"""Inputs of layers beside the hidden states, and the end of a block that takes them, as in Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Addend, Gate
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
    states, multiplied."""

    gate: Linear
    out: Linear
    activation: Gate
    columns: slice

    def apply(self, b: Buffers) -> Tensor:
        """The addend of the residual stream, before its norm."""
        assert b.inputs is not None
        made = ops.act(self.gate.apply(Input(b.hidden, context=b.row_context)), self.activation)
        return self.out.apply(Input(made.mul_(b.inputs[:, self.columns]), context=b.row_context), b.delta)


@dataclass(frozen=True, slots=True)
class AddingBlock(Block):
    """A block that adds its input of the layer behind the MLP, whose `mlp_end` has no norm: the next block's is that of
    `end`, and the adder's is the one behind it there."""

    adder: InputAdder
    end: AddNorm

    def products(self) -> Mapping[str, Linear]:
        own = {"input gate": self.adder.gate, "input": self.adder.out}
        return {**self.attention.products(), **self.mlp.products(), **own}

    def _after_attention(self, b: Buffers) -> Input:
        self.mlp.into_norm(self.attention.into_norm(b, self.attention_end), b, self.mlp_end)
        return self.end.add(b, Addend(self.adder.apply(b)))
