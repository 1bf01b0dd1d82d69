"""A block's layout follows from what each layer keeps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo_kernels import ops
from octavo_worker.contract.cache import CacheSpec, KvLayout, common_shape, common_window, windows_of

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


def test_one_shape_is_what_plans_are_made_for() -> None:
    spec = CacheSpec(8, 64, 64, "bfloat16", window=512)
    assert common_shape([spec, CacheSpec(8, 64, 64, "bfloat16")]) == CacheSpec(8, 64, 64, "bfloat16")
    with pytest.raises(ValueError, match=r"different shapes \[\(2, 512, 512\), \(8, 64, 64\)\]"):
        common_shape([spec, CacheSpec(2, 512, 512, "bfloat16")])
