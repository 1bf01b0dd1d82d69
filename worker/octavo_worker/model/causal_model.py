"""A model as its runner sees it, and the KV cache that both agree on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo_worker.model.batch import Batch
from octavo_worker.ranks.group import Group


class CausalModel(Protocol):
    """The model as a runner sees it: `Decoder` or `TransformersModel`.

    `forward` gives one row of features for each of `rows` (None: for every token); `logits` turns features into
    logits, float32 or of `dtype`. While it is `shortened`, layers may be left out, but no kernel. `windows` are the
    sliding windows that occur among its layers (0: none), `num_heads` the query heads of a layer, 0 if they are not
    known. `is_capturable`: whether its steps can be captured in CUDA graphs; None: only a trial tells. `uniform`:
    whether each row is to be computed, on a GPU too, as if it were alone. `forms`: those of quantised weights, in
    words. `factors`: those of LongRoPE, short or long; empty: it has none. `kept_bytes` are those of a token that it
    keeps beside keys and values. With a `group` heads are those of one of its ranks, and so are the tokens of `logits`.
    """

    group: Group | None
    forms: frozenset[str]
    uniform: bool
    factors: str
    kept_bytes: int
    num_heads: int
    windows: list[int]
    dtype: torch.dtype
    device: torch.device
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int  # tokens that a query sees in every layer; 0: all, in some layer

    @property
    def is_capturable(self) -> bool | None: ...

    def bind(self, kv_cache: Tensor, block_size: int, max_model_len: int) -> None: ...

    def shortened(self) -> AbstractContextManager[None]: ...

    def forward(self, batch: Batch, rows: Tensor | None) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The size of a KV cache, null blocks included.

    `num_host_blocks` (0: none) more blocks lie in the host's memory, for swapped sequences and, if the runner
    `reads_host`, for what does not fit of oversized ones: attention reads those at their place. `dtype`: int8 or
    float8_e4m3fn instead of the model's.
    """

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    dtype: torch.dtype | None = None


def in_pools(pairs: Sequence[tuple[int, int]], first_host_block: int) -> Tensor:
    """Pairs of a block of the device and one of the host, in any order, as each pool counts its own."""
    ids = torch.tensor(pairs, dtype=torch.int64)
    return ids - first_host_block * (ids >= first_host_block)
