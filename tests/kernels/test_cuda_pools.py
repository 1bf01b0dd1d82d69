"""Kernels reach the host's blocks where they lie, and compute from them what they compute from the device's."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from octavo_kernels import ops
from octavo_kernels.pools import Pools, empty_pools, reads_host

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

CUDA = torch.device("cuda")
BLOCK, BLOCKS, LAYERS, HEADS, KV_HEADS = 16, 80, 3, 8, 2
LENGTHS = [(1, 1000), (1, 17), (5, 700), (200, 900), (64, 64)]  # queries, context


def pools_of(dtype: torch.dtype, head_dim: int) -> Pools:
    """With all layers apart, as `ops.empty_cache` has them."""
    pools = empty_pools(BLOCKS, BLOCKS, ops.block_bytes(LAYERS, KV_HEADS, BLOCK, head_dim, dtype), dtype, CUDA)
    assert pools.first_host_block is not None, "this driver maps no memory of the host"
    apart = (LAYERS, 2, KV_HEADS, -1)
    return replace(pools, **{name: getattr(pools, name).unflatten(1, apart) for name in ("blocks", "device", "host")})


def attend(pools: Pools, q: torch.Tensor, table: torch.Tensor, context: int) -> torch.Tensor:
    out = torch.full_like(q, float("nan"))
    lengths, queries = (torch.tensor(x, dtype=torch.int32, device=CUDA) for x in ([context], [0, len(q)]))
    ops.paged_attention(q, pools.blocks[:, 1], table[None], lengths, queries, out, 0.125, BLOCK)
    return out


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize(
    ("dtype", "cells"),
    [
        (torch.bfloat16, None),
        (torch.float16, None),
        (torch.float32, None),
        (torch.bfloat16, torch.int8),
        (torch.bfloat16, torch.float8_e4m3fn),
    ],
)
def test_attention_reads_either_pool_with_the_same_bits(
    dtype: torch.dtype, cells: torch.dtype | None, head_dim: int
) -> None:
    pools = pools_of(cells or dtype, head_dim)
    first = pools.first_host_block
    assert first is not None
    torch.manual_seed(head_dim)
    for queries, context in LENGTHS:
        used = -(-context // BLOCK)
        device = torch.randperm(BLOCKS - 1, device=CUDA)[:used].int() + 1
        host = torch.randperm(BLOCKS - 1, device=CUDA)[:used].int() + 1 + first
        position = torch.arange(context, device=CUDA)
        k, v = (torch.randn(context, KV_HEADS, head_dim, device=CUDA, dtype=dtype) for _ in range(2))
        for table in (device, host):
            slots = table[position // BLOCK].long() * BLOCK + position % BLOCK
            ops.write_kv(k, v, pools.blocks[:, 1], slots, BLOCK)
        q = torch.randn(queries, HEADS, head_dim, device=CUDA, dtype=dtype)
        wanted = attend(pools, q, device, context)
        assert wanted.isfinite().all()
        assert torch.equal(attend(pools, q, host, context), wanted)
        mixed = torch.where(torch.arange(used, device=CUDA) < used // 2, host, device)
        assert torch.equal(attend(pools, q, mixed, context), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_blocks_go_to_the_host_and_come_back(dtype: torch.dtype) -> None:
    pools = pools_of(dtype, 128)
    octets = pools.device.view(torch.uint8)
    octets.copy_(torch.randint(0, 256, octets.shape, dtype=torch.uint8))
    before = octets.clone()
    out = torch.tensor([(1, 7), (2, 1), (5, 79)])
    ops.swap_blocks(pools.device, pools.host, out)
    octets.zero_()
    ops.swap_blocks(pools.host, pools.device, out.flip(1))
    torch.cuda.synchronize()
    assert torch.equal(octets[[1, 2, 5]], before[[1, 2, 5]])
    assert not octets[[3, 4, 6]].any()


# Others may use the GPU beside a test, so what is free tells nothing: what one pool after the other left behind would
# sooner or later leave no room for the next.
BYTES = ops.block_bytes(LAYERS, KV_HEADS, BLOCK, 128, torch.bfloat16)
LARGE = (2 << 30) // BYTES


def more_than_the_gpu_holds() -> range:
    return range(torch.cuda.mem_get_info()[1] // (2 << 30) + 1)


def test_pools_that_are_gone_leave_nothing() -> None:
    assert reads_host(CUDA)
    for _ in more_than_the_gpu_holds():
        pools = empty_pools(LARGE, BLOCKS, BYTES, torch.bfloat16, CUDA)
        pools.blocks[-1].fill_(1.0)
        torch.cuda.synchronize()
        del pools
        gc.collect()


def test_more_than_there_is_is_refused() -> None:
    twice = 2 * torch.cuda.mem_get_info()[1] // (2 << 30) * LARGE
    with pytest.raises(RuntimeError, match="MiB of the GPU's memory for the KV cache"):
        empty_pools(twice, 1, BYTES, torch.bfloat16, CUDA)
    assert len(empty_pools(LARGE, 1, BYTES, torch.bfloat16, CUDA).device) == LARGE
