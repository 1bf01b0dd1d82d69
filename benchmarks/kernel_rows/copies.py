"""Copies of blocks on the device, and between it and the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from kernel_rows.measuring import COPY, LINK, Row, bf16, measure, rotations, row
from kernel_rows.paged import Cache
from octavo_kernels import ops
from octavo_kernels.attention.plan import AttentionPlan, chunk_tokens


def copy(pool: Tensor, count: int) -> Row:
    """Copy of blocks anywhere; the peer is one copy of as many neighbouring ones (cudaMemcpyAsync)."""
    moved = 2 * count * pool[0].nbytes
    pairs = [
        torch.randperm(len(pool), device="cuda")[: 2 * count].view(count, 2).contiguous()
        for _ in range(rotations(moved))
    ]
    seconds = measure([lambda p=p: ops.copy_blocks(pool, p) for p in pairs])
    starts = [2 * count * (i % (len(pool) // (2 * count))) for i in range(len(pairs))]
    peer = measure([lambda i=i: pool[i + count : i + 2 * count].copy_(pool[i : i + count]) for i in starts])
    return row("copy_blocks", f"{count} x {pool[0].nbytes >> 20} MiB", seconds, moved / COPY, ("memcpy", peer))


def copy_rows() -> list[Row]:
    pool = ops.empty_cache(1024, 32, 8, 16, 128, torch.bfloat16, "cuda")
    pool.view(len(pool), -1).normal_()
    return [copy(pool, count) for count in (1, 8, 32, 256)]


def swap_rows() -> list[Row]:
    """Whole blocks to and from pinned memory, one way and both, and what that costs a decode loop beside it; the peer
    of the latter is the loop alone."""
    blocks, count = 512, 256
    pool = ops.empty_cache(blocks, 32, 8, 16, 128, torch.bfloat16, "cuda").fill_(1.0)
    host = torch.ones(pool.shape, dtype=pool.dtype, pin_memory=True)
    to_host, to_device = torch.cuda.Stream(), torch.cuda.Stream()
    out_pairs, in_pairs = torch.randint(blocks, (2, count, 2))
    out_pairs[:, 0] //= 2  # the two ways share no block of the device
    in_pairs[:, 1] = in_pairs[:, 1] // 2 + blocks // 2

    def swap(ways: str, rounds: int = 1) -> None:
        for _ in range(rounds):
            if "o" in ways:
                with torch.cuda.stream(to_host):
                    ops.swap_blocks(pool, host, out_pairs)
            if "i" in ways:
                with torch.cuda.stream(to_device):
                    ops.swap_blocks(host, pool, in_pairs)

    def seconds(call: Callable[[], object]) -> float:
        times = []
        for _ in range(7):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    moved = count * pool[0].nbytes
    shape = f"{count} x {pool[0].nbytes >> 20} MiB"
    rows = [
        row("swap", f"{shape} {name}", seconds(lambda w=w: swap(w)), moved / LINK)
        for w, name in (("o", "out"), ("i", "in"), ("oi", "out and in at once"))
    ]
    loop = decode_loop()

    def loop_seconds(ways: str) -> float:
        """Seconds of one step, while the copies go on."""
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            swap(ways, 6)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(40):
                loop()
            end.record()
            end.synchronize()
            if ways and to_host.query() and to_device.query():
                raise RuntimeError("the copies ended before the decode loop: give them more rounds")
            times.append(begin.elapsed_time(end) / 1e3 / 40)
        return statistics.median(times)

    alone = loop_seconds("")
    return rows + [
        row("decode beside swaps", f"32/8/128 b16 B32 L4096, swap {name}", loop_seconds(w), alone, ("alone", alone))
        for w, name in (("o", "out"), ("i", "in"), ("oi", "out and in"))
    ]


def decode_loop() -> Callable[[], None]:
    """A graph of decode attention over four layers."""
    cache = Cache.make([4096] * 32, 4, 8, 128, 16)
    q, starts = bf16(32, 32, 128), torch.arange(33, dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)
    plan = AttentionPlan(
        sequences=32, tokens=32, chunks=32 * -(-4096 // chunk_tokens()), heads=32, kv_heads=8, head_dim=128,
        max_queries=1,
    )  # fmt: skip
    plan.update(cache.lengths, starts)

    def step() -> None:
        for layer in range(4):
            ops.paged_attention(
                q, cache.pool[:, layer], cache.tables, cache.lengths, starts, out, 128**-0.5, 16, plan=plan
            )

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    kept = (graph, cache, q, starts, out, plan)
    return lambda: kept[0].replay()
