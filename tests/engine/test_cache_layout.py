"""A block's layout follows from what each layer keeps."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo_kernels import ops
from octavo_kernels.cache.pools import empty_pools
from octavo_worker.contract.cache import (
    AttentionShape,
    CacheSpec,
    KvLayout,
    common_window,
    heads_per_kv,
    shapes_of,
    windows_of,
)
from octavo_worker.model.causal_model import layer_caches

KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn]


@given(st.integers(1, 40), st.integers(1, 16), st.sampled_from([4, 16, 64]), st.integers(1, 32), st.sampled_from(KINDS))
def test_equal_layers_take_the_bytes_of_the_kernels_cache(
    layers: int, kv_heads: int, block_size: int, eighths: int, dtype: torch.dtype
) -> None:
    dim, name = 8 * eighths, str(dtype).removeprefix("torch.")
    layout = KvLayout.of([CacheSpec(kv_heads, dim, dim, "bfloat16")] * layers, block_size, name)
    assert layout.block_bytes == ops.block_bytes(layers, kv_heads, block_size, dim, dtype)
    cache = ops.empty_cache(1, layers, kv_heads, block_size, dim, dtype)
    assert [piece.offset for piece in layout.pieces if piece] == [
        cache[:, layer].storage_offset() * dtype.itemsize for layer in range(layers)
    ]


def test_layers_of_different_shapes_are_described_side_by_side() -> None:
    small, large = CacheSpec(8, 64, 64, "bfloat16", window=512), CacheSpec(2, 512, 512, "bfloat16")
    layout = KvLayout.of([small, None, large], 16)
    assert [piece and (piece.offset, piece.nbytes) for piece in layout.pieces] == [
        (0, 16 * 8 * 128 * 2),
        None,
        (16 * 8 * 128 * 2, 16 * 2 * 1024 * 2),
    ]
    assert layout.block_bytes == 16 * (8 * 128 + 2 * 1024) * 2
    assert windows_of(layout.specs) == [0, 512]
    assert common_window(layout.specs) == 0


def test_keys_wider_than_values_count_for_what_they_are() -> None:
    assert CacheSpec(1, 576, 0, "bfloat16").token_bytes == 1152
    assert CacheSpec(4, 192, 128, "int8").token_bytes == 4 * (192 + 128 + 8)


@pytest.mark.parametrize(("windows", "common"), [([0, 0], 0), ([128, 128], 128), ([128, 0], 0), ([64, 128], 128)])
def test_what_every_layer_sees(windows: list[int], common: int) -> None:
    assert common_window(CacheSpec(1, 64, 64, "float32", window) for window in windows) == common


def test_layers_share_a_plan_where_attention_has_one_shape() -> None:
    sliding, full = CacheSpec(8, 64, 64, "bfloat16", window=512, heads=16), CacheSpec(8, 64, 64, "bfloat16", heads=16)
    wide, alone = CacheSpec(2, 512, 512, "bfloat16", heads=16), CacheSpec(4, 64, 64, "bfloat16")
    specs = [sliding, full, None, wide, alone, sliding]
    assert shapes_of(specs) == [
        AttentionShape(window=0, heads=4, kv_heads=4, width=64),
        AttentionShape(window=0, heads=16, kv_heads=2, width=512),
        AttentionShape(window=0, heads=16, kv_heads=8, width=64),
        AttentionShape(window=512, heads=16, kv_heads=8, width=64),
    ]
    assert heads_per_kv(specs) == [1, 2, 8]


def test_layers_that_share_have_one_piece_and_cost_it_once() -> None:
    own, wide = CacheSpec(2, 64, 64, "float32", window=8), CacheSpec(1, 128, 128, "float32")
    layout = KvLayout.of([own, wide, None, replace(own, shares=0), replace(wide, shares=1)], 16)
    assert [layout.pieces[shared] for shared in (3, 4)] == [layout.pieces[kept] for kept in (0, 1)]
    assert layout.block_bytes == 16 * (own.token_bytes + wide.token_bytes)
    views = layer_caches(torch.zeros(3, layout.block_bytes // 4), layout)
    assert [view if view is None else view.data_ptr() for view in views[2:]] == [
        None,
        *(view.data_ptr() for view in views[:2] if view is not None),
    ]


SPECS = st.builds(CacheSpec, st.integers(1, 3), st.just(8), st.just(8), st.just("float32")) | st.builds(
    CacheSpec, st.integers(1, 3), st.just(24), st.just(24), st.just("float32"), st.sampled_from([0, 16])
)


@given(st.lists(st.none() | SPECS, min_size=1).filter(any), st.sampled_from([None, *KINDS[3:]]), st.randoms())
def test_a_block_of_unequal_pieces_is_copied_swapped_and_restored_whole(
    specs: list[CacheSpec | None], dtype: torch.dtype | None, random: Random
) -> None:
    """Each layer's part of each block holds numbers of its own: what moves a block moves them all, and no others."""
    layout = KvLayout.of(specs, 4, dtype and str(dtype).removeprefix("torch."))
    pools = empty_pools(6, 3, layout.block_bytes, dtype or torch.float32, torch.device("cpu"))
    views = [view.view(torch.uint8) for view in layer_caches(pools.blocks, layout) if view is not None]
    for number, view in enumerate(views):
        marks = torch.arange(len(view))[:, None, None, None] * len(views) + number + 1
        view.copy_(marks.expand_as(view) % 251)
    before = [view.clone() for view in views]
    assert sum(view[0].numel() for view in views) == layout.block_bytes
    source, target, other = random.sample(range(6), 3)
    host = random.randrange(3)
    ops.swap_blocks(pools.device, pools.host, torch.tensor([[source, host]]))
    ops.copy_blocks(pools.device, torch.tensor([[other, source]]))
    ops.swap_blocks(pools.host, pools.device, torch.tensor([[host, target]]))
    now = {6 + host: source, source: other, target: source}
    for view, old in zip(views, before, strict=True):
        for block in range(len(view)):
            assert torch.equal(view[block], old[now.get(block, block)])
