"""One block of a transformer: attention, then an MLP."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from torch import Tensor

from octavo_worker.model.batch import Batch
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.mixer import Mixer
from octavo_worker.model.layers.mlp import Mlp
from octavo_worker.model.layers.norm import AddNorm, Input


@dataclass(frozen=True, slots=True)
class Block:
    attention: Mixer
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
        return type(self), linears, self.attention.kind

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


@dataclass(frozen=True, slots=True)
class ParallelBlock(Block):
    """Attention and MLP read the same norm of what enters the block; both outputs are added to it. `attention_end` has
    no norm."""

    def forward(self, x: Input, b: Buffers, batch: Batch) -> Input:
        self._attend(x, b, batch)
        return self._after_attention(b)

    def forward_some(self, x: Input, b: Buffers, batch: Batch, rows: Tensor, chosen: Buffers) -> Input:
        self._attend(x, b, batch)
        chosen.normed = b.normed[rows]
        return self._after_attention(b.select(rows, chosen))

    def _attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        """The norm is stored: the sum with attention's output takes the place of what it is of."""
        normed = x.materialise()
        assert normed.data_ptr() == b.normed.data_ptr()
        self.attention.attend(Input(normed, context=x.context), b, batch)

    def _after_attention(self, b: Buffers) -> Input:
        self.attention.into_norm(b, self.attention_end)
        return self.mlp.into_norm(Input(b.normed, context=b.row_context), b, self.mlp_end)
