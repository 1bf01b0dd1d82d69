"""A model as its runner sees it, and the KV cache that both agree on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo_kernels.cache.pools import Pools, empty_pools
from octavo_kernels.ops import LayerStates
from octavo_worker.contract.cache import CacheSpec, KvLayout, in_group
from octavo_worker.contract.state import StateSpec
from octavo_worker.contract.windows import Slabs
from octavo_worker.model.batch import Batch
from octavo_worker.model.config import LatentLayer
from octavo_worker.model.transfer import dtype_name
from octavo_worker.ranks.group import Group


class CausalModel(Protocol):
    """The model as a runner sees it: `Decoder` or `TransformersModel`.

    `forward` gives one row of features for each of `rows` (None: for every token); `logits` turns features into logits,
    float32 or of `dtype`. While it is `shortened`, layers may be left out, but no kernel. `cache` says what each
    layer keeps, in the model's own type, None where it keeps nothing, and `bind` gives each layer its part of the
    blocks. `states` says what recurrent layers keep of a sequence, None where a layer has no state, and `bind_states`
    gives each its part of the slots. `is_capturable`: whether its steps can be captured in CUDA graphs; None: only a
    trial tells. `uniform`: whether each row is to be computed, on a GPU too, as if it were alone. `route`: the code
    that computes it, with its revision. `forms`: those of quantised weights, in words. `factors`: those of LongRoPE,
    short or long; empty: it has none. `has_whole_experts`: each rank has some of the experts, and not a part of all.
    `has_chunks`: recurrent layers compute prompts by chunks, whose cuts show in last bits.
    `expanded`: the layers whose prompts may be computed in the expanded form of latent attention; None: there are none.
    `kept_bytes` are those of a token that it keeps beside keys and values. Where it `reads_windows`, layers with a
    window may have blocks of their own. With a `group` heads are those of one of its
    ranks, and so are the tokens of `logits`.
    """

    group: Group | None
    route: str
    forms: frozenset[str]
    uniform: bool
    factors: str
    has_whole_experts: bool
    has_chunks: bool
    expanded: LatentLayer | None
    kept_bytes: int
    reads_windows: bool
    dtype: torch.dtype
    device: torch.device
    vocab_size: int
    cache: tuple[CacheSpec | None, ...]
    states: tuple[StateSpec | None, ...]

    @property
    def is_capturable(self) -> bool | None: ...

    def bind(self, caches: Sequence[Tensor | None], block_size: int, max_model_len: int) -> None: ...

    def bind_states(self, states: Sequence[LayerStates | None]) -> None: ...

    def shortened(self) -> AbstractContextManager[None]: ...

    def forward(self, batch: Batch, rows: Tensor | None) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


def layout_of(model: CausalModel, block_size: int, dtype: torch.dtype | None = None) -> KvLayout:
    """The blocks of a model's cache; `dtype`: int8 or float8_e4m3fn instead of the model's."""
    return KvLayout.of(model.cache, block_size, None if dtype is None else dtype_name(dtype))


def layouts_of(model: CausalModel, block_size: int, dtype: torch.dtype | None = None) -> tuple[KvLayout, KvLayout]:
    """The blocks of layers that see all, and those of layers with a window, where these are two groups."""
    name = None if dtype is None else dtype_name(dtype)
    full, windowed = (in_group(model.cache, windowed=windowed) for windowed in (False, True))
    return KvLayout.of(full, block_size, name), KvLayout.of(windowed, block_size, name)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The size of a KV cache, null blocks included.

    `num_host_blocks` (0: none) more blocks lie in the host's memory, for swapped sequences and, if the runner
    `reads_host`, for what does not fit of oversized ones: attention reads those at their place. `dtype`: int8 or
    float8_e4m3fn instead of the model's. `num_state_slots` count slot 0 (0: the model keeps no states), and so do the
    `num_host_state_slots` in the host's memory (0: none). `num_window_blocks` are those of layers with a window, where
    they are a group of their own (0: all layers are one), `num_host_window_blocks` the same in the host's memory.
    With `slabs` both groups lie in the same memory of the device.
    """

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    dtype: torch.dtype | None = None
    num_state_slots: int = 0
    num_host_state_slots: int = 0
    num_window_blocks: int = 0
    num_host_window_blocks: int = 0
    slabs: Slabs | None = None


def in_pools(pairs: Sequence[tuple[int, int]], first_host_block: int) -> Tensor:
    """Pairs of a block of the device and one of the host, in any order, as each pool counts its own."""
    ids = torch.tensor(pairs, dtype=torch.int64)
    return ids - first_host_block * (ids >= first_host_block)


def empty_cache(model: CausalModel, cache: CacheConfig) -> Pools:
    """Uninitialised blocks of a model, of all layers. Raises `RuntimeError` if there is not as much memory."""
    layout = layout_of(model, cache.block_size, cache.dtype)
    dtype = cache.dtype or model.dtype
    return empty_pools(cache.num_blocks, cache.num_host_blocks, layout.block_bytes, dtype, model.device)


@dataclass(frozen=True, slots=True)
class GroupedCache:
    """The pools of a model's cache, of each group of blocks, their layouts, and the part of each layer."""

    pools: Pools
    layout: KvLayout
    parts: Sequence[Tensor | None]
    window_pools: Pools | None = None
    window_layout: KvLayout | None = None


def grouped_cache(model: CausalModel, cache: CacheConfig) -> GroupedCache:
    """Uninitialised blocks of one or two groups. Raises `RuntimeError` if there is not as much memory."""
    if not cache.num_window_blocks:
        pools, layout = empty_cache(model, cache), layout_of(model, cache.block_size, cache.dtype)
        return GroupedCache(pools, layout, layer_caches(pools.blocks, layout))
    layout, windowed = layouts_of(model, cache.block_size, cache.dtype)
    dtype, device = cache.dtype or model.dtype, model.device
    pools = empty_pools(cache.num_blocks, cache.num_host_blocks, layout.block_bytes, dtype, device)
    sizes = cache.num_window_blocks, cache.num_host_window_blocks
    if cache.slabs is not None:
        windows = _in_same_memory(pools.device, *sizes, windowed.block_bytes)
    else:
        windows = empty_pools(*sizes, windowed.block_bytes, dtype, device)
    both = zip(layer_caches(pools.blocks, layout), layer_caches(windows.blocks, windowed), strict=True)
    parts = [one if other is None else other for one, other in both]
    return GroupedCache(pools, layout, parts, windows, windowed)


def _in_same_memory(memory: Tensor, num_blocks: int, num_host_blocks: int, block_bytes: int) -> Pools:
    """Pools of other blocks, of which those of the device fill the same `memory`. Raises ValueError if they do not."""
    elements = block_bytes // memory.itemsize
    if num_blocks * elements != memory.numel():
        raise ValueError(f"{num_blocks} blocks of {block_bytes} bytes do not fill {memory.nbytes} bytes")
    blocks = memory.view(num_blocks, elements)
    pinned = memory.is_cuda and num_host_blocks > 0
    host = torch.empty((num_host_blocks, elements), dtype=memory.dtype, pin_memory=pinned)
    return Pools(blocks, blocks, host, None)


def layer_caches(blocks: Tensor, layout: KvLayout) -> list[Tensor | None]:
    """The part of each layer in `blocks[num_blocks, elements]`: `[num_blocks, 2, kv_heads, cells]`, as operations take
    it, of a latent `[num_blocks, 1, 1, cells]`; None where a layer keeps nothing. Layers whose keys and values differ
    in width have none that they could take."""
    parts = list[Tensor | None]()
    for spec, piece in zip(layout.specs, layout.pieces, strict=True):
        if spec is None or piece is None:
            parts.append(None)
            continue
        first, count = piece.offset // blocks.itemsize, piece.nbytes // blocks.itemsize
        part = blocks[:, first : first + count]
        parts.append(part.view(len(blocks), spec.rows, spec.kv_heads, count // (spec.rows * spec.kv_heads)))
    return parts
