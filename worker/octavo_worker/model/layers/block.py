"""One block of a transformer: attention, then an MLP."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from torch import Tensor

from octavo_worker.model.batch import Batch
from octavo_worker.model.layers.attention import Attention
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.mlp import Mlp
from octavo_worker.model.layers.norm import AddNorm, Input


@dataclass(frozen=True, slots=True)
class Block:
    attention: Attention
    attention_end: AddNorm
    mlp: Mlp
    mlp_end: AddNorm  # its norm is that of the next block's attention, or the model's last

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        return {**self.attention.products(), **self.mlp.products()}

    @property
    def kind(self) -> Hashable:
        """Equal to that of a block whose steps take the same kernels."""
        linears = tuple((type(linear), linear.forms, linear.nbytes) for linear in self.products().values())
        return linears, *self.attention.reading.values()

    def forward(self, x: Input, b: Buffers, batch: Batch) -> Input:
        """The next block's input."""
        self.attention.attend(x, b, batch)
        return self._after_attention(b)

    def forward_some(self, x: Input, b: Buffers, batch: Batch, rows: Tensor, chosen: Buffers) -> Input:
        """Output of `rows[R]` (int64) alone, in `chosen`, which has as many rows: of a last block the others are not
        read, so that they stop after the attention."""
        self.attention.attend(x, b, batch)
        return self._after_attention(b.select(rows, chosen))

    def _after_attention(self, b: Buffers) -> Input:
        return self.mlp.into_norm(self.attention.into_norm(b, self.attention_end), b, self.mlp_end)
