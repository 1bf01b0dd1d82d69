"""The target's states as an EAGLE head reads them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_worker.contract.step import StepPlan
from octavo_worker.model.causal_model import CacheConfig, in_pools
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import Input
from octavo_worker.model.transfer import on_device


class Features:
    """Features of the tokens in the cache, a row `[hidden]` each: what entered some layers of the target, joined and
    multiplied by the head's matrix `fc`, under the token's slot.

    Rows are kept instead of the head's keys and values, which depend on the next token, too: that one is not known
    when the target computes a step, and may be another in each sequence that shares a prefix. What depends on the
    tokens of a block alone is shared, copied and swapped as the block is. The joined states would take as many times
    the memory as there are layers, and the product is one of a matrix while the target multiplies hundreds.
    """

    def __init__(self, parts: Mapping[int, Linear], hidden_size: int, tokens: int, like: Tensor) -> None:
        """`parts` are the columns of `fc` for each layer, in ascending order. Steps have up to `tokens` tokens; `like`
        has the type and the device of the states."""
        self.layers = tuple(parts)
        self.hidden_size = hidden_size
        self.token_bytes = hidden_size * like.itemsize
        self._parts = parts
        self._rows = like.new_empty((tokens, hidden_size))
        self._pool = self._host = like.new_empty((1, 1, 2, 1, hidden_size // 2))

    def allocate(self, cache: CacheConfig) -> None:
        """Make room for as many blocks as the target's cache has, in the form in which blocks are copied and swapped.
        CPU memory beside a GPU is pinned."""
        cells = cache.block_size * self.hidden_size // 2
        like = self._rows
        self._pool = like.new_empty((cache.num_blocks, 1, 2, 1, cells))
        pinned = like.is_cuda and cache.num_host_blocks > 0
        shape = (cache.num_host_blocks, 1, 2, 1, cells)
        self._host = torch.empty(shape, dtype=like.dtype, pin_memory=pinned)

    def take(self, layer: int, hidden: Tensor) -> None:
        """`hidden[T, hidden]`, which enters one of the `layers`: its share of the product is added to those before."""
        if len(hidden) > len(self._rows):
            self._rows = hidden.new_empty(hidden.shape)
        rows = self._rows[: len(hidden)]
        self._parts[layer].apply(Input(hidden), rows, residual=None if layer == self.layers[0] else rows)

    def keep(self, slots: Tensor) -> None:
        """All states of a step were taken, of the tokens in `slots[T]` (int64; -1 is padding)."""
        self.write(slots.clamp(min=0), self._rows[: len(slots)])

    def write(self, slots: Tensor, rows: Tensor) -> None:
        """Put `rows[T, hidden]` into `slots[T]`. Those of block 0 are never read."""
        self._pool.view(-1, self.hidden_size).index_copy_(0, slots, rows)

    def read(self, slots: Tensor, out: Tensor) -> Tensor:
        return torch.index_select(self._pool.view(-1, self.hidden_size), 0, slots, out=out)

    def move(self, plan: StepPlan, first_host_block: int) -> None:
        """Swap and copy the blocks that a plan does."""
        if plan.swap_in:
            ops.swap_blocks(self._host, self._pool, in_pools(plan.swap_in, first_host_block))
        if plan.swap_out:
            ops.swap_blocks(self._pool, self._host, in_pools(plan.swap_out, first_host_block))
        if plan.copies:
            ops.copy_blocks(self._pool, on_device(plan.copies, torch.int64, self._pool.device))
