"""Blocks of one sublayer: `h += mixer(norm(h))` or `h += mlp(norm(h))`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_worker.model.batch import Batch
from octavo_worker.model.layers.block import Block
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import AddNorm, Input
from octavo_worker.model.layers.tables import Tables


class Absent:
    """A sublayer that is not there: it keeps nothing and is never computed."""

    kind: Hashable = None

    def kept(self, dtype: torch.dtype) -> None:
        return

    def bind(self, cache: Tensor | None, block_size: int, tables: Tables) -> None:
        assert cache is None

    def products(self) -> Mapping[str, Linear]:
        return {}

    def attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        raise AssertionError("a block without a mixer mixes nothing")

    def into_norm(self, *operands: Input | Buffers | AddNorm) -> Input:
        raise AssertionError("a sublayer that is not there has no output")


@dataclass(frozen=True, slots=True)
class SoleMixer(Block):
    """A block without an MLP: the norm of `attention_end` is that of the next block."""

    def _after_attention(self, b: Buffers) -> Input:
        return self.attention.into_norm(b, self.attention_end)


@dataclass(frozen=True, slots=True)
class SoleMlp(Block):
    """A block without a mixer."""

    def forward(self, x: Input, b: Buffers, batch: Batch) -> Input:
        return self.mlp.into_norm(x, b, self.mlp_end)

    def forward_some(self, x: Input, b: Buffers, batch: Batch, rows: Tensor, chosen: Buffers) -> Input:
        normed = x.materialise()
        chosen.hidden = b.hidden[rows]
        chosen.row_context = None if b.row_context is None else b.row_context[rows]
        return self.mlp.into_norm(Input(normed[rows], context=chosen.row_context), chosen, self.mlp_end)
