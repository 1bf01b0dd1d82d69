"""Speed of the CUDA kernels against the fewest bytes or operations they could take.

    python benchmarks/kernels.py --flashinfer --out benchmarks/results/h200-kernels.json

Random bfloat16 data, medians over replays of a CUDA graph. Each graph goes over several layers (or buffers) whose bytes
together exceed four times the L2 cache, so every call finds it cold. Floors use ceilings measured on an H200: paged
reads, copies (read plus write) and a large bf16 matrix product.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels import cuda, ops

READ, COPY, MATMUL = 4.55e12, 4.25e12, 775e12  # bytes/s, bytes/s, FLOP/s
LINK = 55e9  # bytes/s between host and device, each way
COLD_BYTES = 4 * 60e6
WARM_SECONDS = 0.05
MODEL_LAYERS, POOL_BYTES = 32, 40e9  # of a pool: the layers beside the one that is read show in its time


@dataclass
class Row:
    operation: str
    shape: str
    microseconds: float
    floor_microseconds: float
    percent_of_floor: float
    peer: str | None = None
    peer_microseconds: float | None = None
    times_faster: float | None = None


def row(operation: str, shape: str, seconds: float, floor: float, peer: tuple[str, float] | None = None) -> Row:
    result = Row(operation, shape, round(seconds * 1e6, 2), round(floor * 1e6, 2), round(100 * floor / seconds, 1))
    if peer:
        result.peer, result.peer_microseconds = peer[0], round(peer[1] * 1e6, 2)
        result.times_faster = round(peer[1] / seconds, 3)
    print(" | ".join("" if value is None else str(value) for value in asdict(result).values()), flush=True)
    return result


def measure(calls: list[Callable[[], object]], replays: int = 15) -> float:
    """Median seconds of one call: the calls are captured in one graph, which is replayed, at first without being timed:
    a GPU that had nothing to do takes a while to be at its full speed."""
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    awake = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < awake:
        graph.replay()
        torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(calls))
    del graph
    return statistics.median(times)


def rotations(bytes_per_call: float, least: int = 4) -> int:
    return max(least, int(COLD_BYTES // max(bytes_per_call, 1)) + 1)


@dataclass
class Cache:
    pool: Tensor
    tables: Tensor
    lengths: Tensor

    @classmethod
    def make(
        cls,
        lengths: list[int],
        layers: int,
        kv_heads: int,
        head_dim: int,
        block: int,
        shuffled: bool = True,
        dtype: torch.dtype = torch.bfloat16,
        filled: int | None = None,
    ) -> Cache:
        """`filled`: how many of the layers have something in them; None: all."""
        needed = [-(-n // block) for n in lengths]
        pool = ops.empty_cache(sum(needed) + 1, layers, kv_heads, block, head_dim, dtype, "cuda")
        if dtype.itemsize == 1:
            for slots in torch.arange(len(pool) * block, device="cuda").split(16384):
                for layer in range(filled or layers):
                    k = torch.randn(len(slots), kv_heads, head_dim, dtype=torch.bfloat16, device="cuda")
                    ops.write_kv(k, k, pool[:, layer], slots, block)
        else:
            pool.view(pool.shape[0], -1).normal_()
        order = ((torch.randperm if shuffled else torch.arange)(sum(needed)) + 1).int()
        tables = torch.zeros(len(lengths), max(needed), dtype=torch.int32)
        for i, part in enumerate(order.split(needed)):
            tables[i, : needed[i]] = part
        return cls(pool, tables.cuda(), torch.tensor(lengths, dtype=torch.int32, device="cuda"))


class FlashInfer:
    """Its tensor-core decode, the peer of ours: over as many blocks in the same order, a pool for each layer, as it has
    them. It compiles itself once for each head dim, which takes about a quarter of a minute."""

    def __init__(self) -> None:
        try:
            import flashinfer
        except ImportError as error:
            raise SystemExit(
                f"--flashinfer: it cannot be imported ({error}). Install flashinfer-python, or put the folder that "
                "holds it on PYTHONPATH; without the option the other rows are measured alone."
            ) from error
        self.name = f"FlashInfer {flashinfer.__version__}"
        self._wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper

    def decode(self, cache: Cache, layers: int, q: Tensor, kv_heads: int, block: int) -> float:
        """Seconds of one layer."""
        _, heads, head_dim = q.shape
        pools = [
            torch.randn(cache.pool.shape[0], 2, block, kv_heads, head_dim, dtype=q.dtype, device="cuda")
            for _ in range(layers)
        ]
        counts = (cache.lengths + block - 1) // block
        indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
        indices = torch.cat([t[:n] for t, n in zip(cache.tables, counts.tolist(), strict=True)])
        work = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        wrapper = self._wrapper(work, "NHD", use_tensor_cores=True)
        wrapper.plan(
            indptr, indices, (cache.lengths - 1) % block + 1, heads, kv_heads, head_dim, block,
            q_data_type=q.dtype, kv_data_type=q.dtype,
        )  # fmt: skip
        out = torch.empty_like(q)
        return measure([lambda pool=pool: wrapper.run(q, pool, out=out) for pool in pools])


def decode(
    name: str,
    lengths: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int = 128,
    block: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    peer: FlashInfer | None = None,
) -> Row:
    """Over a cache of `dtype`; in eight bits the floor counts the scales, and the peer is our decode over bfloat16."""
    batch = len(lengths)
    kv = sum(lengths) * ops.block_bytes(1, kv_heads, block, head_dim, dtype) // block
    layers = rotations(kv, 3)
    held = max(layers, min(MODEL_LAYERS, int(POOL_BYTES / kv)))
    cache = Cache.make(lengths, held, kv_heads, head_dim, block, dtype=dtype, filled=layers)
    q = torch.randn(batch, heads, head_dim, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(q)
    starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
    plan = cuda.AttentionPlan(
        sequences=batch, tokens=batch, chunks=sum(-(-n // cuda.chunk_tokens()) for n in lengths), heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, max_queries=1,
    )  # fmt: skip
    plan.update(cache.lengths, starts)

    def call(layer: int) -> None:
        ops.paged_attention(
            q, cache.pool[:, layer], cache.tables, cache.lengths, starts, out, head_dim**-0.5, block, plan=plan,
            settled=True,
        )  # fmt: skip

    seconds = measure([lambda i=i: call(i) for i in range(layers)])
    floor = (kv + 2 * batch * heads * head_dim * 2) / READ
    shape = f"{heads}/{kv_heads}/{head_dim} b{block} {name}"
    if dtype.itemsize == 1:
        plain = decode(name, lengths, heads, kv_heads, head_dim, block).microseconds
        return row(f"decode {str(dtype)[6:]}", shape, seconds, floor, ("octavo bfloat16", plain / 1e6))
    beside = peer and (peer.name, peer.decode(cache, layers, q, kv_heads, block))
    return row("decode", shape, seconds, floor, beside)


def cascade(count: int, prefix: int, suffix: int, heads: int, kv_heads: int, head_dim: int = 128) -> Row:
    """Decoding of `count` sequences that share their first `prefix` tokens, grouped; the peer is our own decode."""
    block = 16
    tokens = prefix + count * suffix
    kv = 2 * tokens * kv_heads * head_dim * 2
    layers = rotations(kv, 3)
    cache = Cache.make([prefix] + [suffix] * count, layers, kv_heads, head_dim, block)
    leading = cache.tables[:1, : prefix // block].expand(count, -1)
    tables = torch.cat((leading, cache.tables[1:, : -(-suffix // block)]), dim=1).contiguous()
    lengths = torch.full((count,), prefix + suffix, dtype=torch.int32, device="cuda")
    q, starts = bf16(count, heads, head_dim), torch.arange(count + 1, dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)

    def seconds(shared: bool) -> float:
        plan = cuda.AttentionPlan(
            sequences=count, tokens=count, chunks=count * -(-(prefix + suffix) // cuda.chunk_tokens()), heads=heads,
            kv_heads=kv_heads, head_dim=head_dim, max_queries=1, shared_prefixes=shared,
        )  # fmt: skip
        plan.update(lengths, starts, torch.zeros_like(lengths), torch.full_like(lengths, prefix))

        def call(layer: int) -> None:
            ops.paged_attention(q, cache.pool[:, layer], tables, lengths, starts, out, head_dim**-0.5, block, plan=plan)

        return measure([lambda i=i: call(i) for i in range(layers)])

    floor = max((kv + 2 * q.nbytes) / READ, 4 * heads * head_dim * count * (prefix + suffix) / MATMUL)
    shape = f"{heads}/{kv_heads}/{head_dim} {count} x ({prefix} shared + {suffix})"
    return row("shared-prefix decode", shape, seconds(True), floor, ("octavo, not grouped", seconds(False)))


def prefill(
    queries: list[int],
    context: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int = 128,
    shuffled: bool = True,
    dtype: torch.dtype = torch.bfloat16,
) -> list[Row]:
    """Over a cache of `dtype`; in eight bits the peer is our own over bfloat16."""
    layers, block = 2, 16
    cache = Cache.make(context, layers, kv_heads, head_dim, block, shuffled, dtype)
    tokens = sum(queries)
    q = torch.randn(tokens, heads, head_dim, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(q)
    starts = torch.tensor([0, *queries]).cumsum(0).int().cuda()
    plan = cuda.AttentionPlan(
        sequences=len(queries), tokens=tokens,
        chunks=cuda.chunk_count(context, queries, heads // kv_heads),
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, max_queries=max(queries),
        shared_prefixes=dtype.itemsize == 2,
    )  # fmt: skip
    plan.update(cache.lengths, starts, prompts_only=cuda.only_prompts(context, queries, heads // kv_heads))

    def call(layer: int) -> None:
        ops.paged_attention(
            q, cache.pool[:, layer], cache.tables, cache.lengths, starts, out, head_dim**-0.5, block, plan=plan
        )

    seconds = measure([lambda i=i: call(i) for i in range(layers)], replays=7)
    operations = sum(4 * heads * head_dim * (n * c - n * (n - 1) / 2) for n, c in zip(queries, context, strict=True))
    moved = sum(context) * ops.block_bytes(1, kv_heads, block, head_dim, dtype) // block + 2 * q.nbytes
    shape = f"{heads}/{kv_heads}/{head_dim} {len(queries)} x {queries[0]} of {context[0]}"
    shape += "" if shuffled else ", blocks in order"
    if dtype.itemsize == 1:
        plain = prefill(queries, context, heads, kv_heads, head_dim)[0].microseconds
        print(f"{operations / seconds / 1e12:.0f} TFLOP/s", end=" | ")
        floor = max(operations / MATMUL, moved / READ)
        return [row(f"prefill {str(dtype)[6:]}", shape, seconds, floor, ("octavo bfloat16", plain / 1e6))]
    rows = []
    for name, peer in torch_prefill(queries, context, heads, kv_heads, head_dim).items() or [("", None)]:
        print(f"{operations / seconds / 1e12:.0f} TFLOP/s", end=" | ")
        rows.append(row("prefill", shape, seconds, max(operations / MATMUL, moved / READ), peer and (name, peer)))
    return rows


def torch_prefill(queries: list[int], context: list[int], heads: int, kv_heads: int, head_dim: int) -> dict[str, float]:
    """Torch's own kernels on contiguous tensors, where all prompts are whole and of one length."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if queries != context or len(set(queries)) > 1:
        return {}

    def make(count: int) -> Tensor:
        return torch.randn(len(queries), count, queries[0], head_dim, dtype=torch.bfloat16, device="cuda")

    q, k, v = make(heads), make(kv_heads), make(kv_heads)
    attend = torch.nn.functional.scaled_dot_product_attention
    seconds = {}
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
        with sdpa_kernel(backend):
            seconds[f"torch {name} (contiguous)"] = measure(
                [lambda: attend(q, k, v, is_causal=True, enable_gqa=True)] * 2, replays=7
            )
    return seconds


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def rms_norm(tokens: int, width: int) -> Row:
    moved = 4 * tokens * width * 2
    n = rotations(moved)
    x, residual, out, weight = bf16(n, tokens, width), bf16(n, tokens, width), bf16(n, tokens, width), bf16(width)
    calls = [lambda i=i: ops.rms_norm(x[i], weight, 1e-5, out=out[i], residual=residual[i]) for i in range(n)]

    def peer(i: int) -> Tensor:
        return torch.nn.functional.rms_norm(residual[i].add_(x[i]), (width,), weight, 1e-5)

    seconds = measure(calls)
    peer_seconds = measure([partial(peer, i) for i in range(n)])
    return row("residual + rms_norm", f"{tokens} x {width}", seconds, moved / COPY, ("torch", peer_seconds))


def silu_and_mul(tokens: int, width: int) -> Row:
    moved = 3 * tokens * width * 2
    n = rotations(moved)
    x, out = bf16(n, tokens, 2 * width), bf16(n, tokens, width)
    calls = [lambda i=i: ops.act_and_mul(x[i], "silu", out=out[i]) for i in range(n)]

    def peer(i: int) -> Tensor:
        return torch.mul(torch.nn.functional.silu(x[i, :, :width]), x[i, :, width:], out=out[i])

    seconds = measure(calls)
    peer_seconds = measure([partial(peer, i) for i in range(n)])
    return row("silu_and_mul", f"{tokens} x {width}", seconds, moved / COPY, ("torch", peer_seconds))


def rope_write(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> Row:
    """Into a cache of `dtype`."""
    columns = (heads + 2 * kv_heads) * head_dim
    moved = tokens * ((columns + heads * head_dim) * 2 + ops.block_bytes(1, kv_heads, 16, head_dim, dtype) // 16)
    n = rotations(moved)
    qkv, q, norm = bf16(n, tokens, columns), bf16(n, tokens, heads, head_dim), bf16(head_dim)
    pool = ops.empty_cache(tokens // 16 + 2, n, kv_heads, 16, head_dim, dtype, "cuda")
    blocks = torch.randperm(tokens // 16 + 1, device="cuda") + 1
    positions, cos_sin = torch.arange(tokens, device="cuda"), torch.randn(tokens, head_dim, device="cuda")
    slots = blocks[positions // 16] * 16 + positions % 16
    calls = [
        lambda i=i: ops.rope_write_kv(qkv[i], q[i], pool[:, i], slots, positions, cos_sin, norm, norm) for i in range(n)
    ]
    shape = f"{tokens} x {heads}/{kv_heads}/{head_dim}"
    name = "qk_norm + rope + write_kv" + (f" {str(dtype)[6:]}" if dtype.itemsize == 1 else "")
    return row(name, shape, measure(calls), moved / COPY)


def fused_rows() -> list[Row]:
    rows = []
    for tokens in (1, 32, 256, 4096):
        rows += [rms_norm(tokens, 4096), silu_and_mul(tokens, 14336), rope_write(tokens, 32, 8, 128)]
        rows += [rope_write(tokens, 32, 8, 128, dtype) for dtype in (torch.int8, torch.float8_e4m3fn)]
    return rows


def copy(pool: Tensor, count: int) -> Row:
    moved = 2 * count * pool[0].nbytes
    pairs = [
        torch.randperm(len(pool), device="cuda")[: 2 * count].view(count, 2).contiguous()
        for _ in range(rotations(moved))
    ]
    seconds = measure([lambda p=p: ops.copy_blocks(pool, p) for p in pairs])
    peer = measure([lambda p=p: pool.index_copy_(0, p[:, 1], pool.index_select(0, p[:, 0])) for p in pairs])
    return row("copy_blocks", f"{count} x {pool[0].nbytes >> 20} MiB", seconds, moved / COPY, ("torch", peer))


def copy_rows() -> list[Row]:
    pool = ops.empty_cache(1024, 32, 8, 16, 128, torch.bfloat16, "cuda")
    pool.view(len(pool), -1).normal_()
    return [copy(pool, count) for count in (1, 8, 256)]


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
        """Of one step, while the copies go on."""
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
    plan = cuda.AttentionPlan(
        sequences=32, tokens=32, chunks=32 * -(-4096 // cuda.chunk_tokens()), heads=32, kv_heads=8, head_dim=128,
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


def decode_table(heads: int, kv_heads: int, peer: FlashInfer | None) -> list[Row]:
    return [
        decode("B64 L8192", [8192] * 64, heads, kv_heads, peer=peer),
        decode("B8 L32768", [32768] * 8, heads, kv_heads, peer=peer),
        decode("B32 L4096", [4096] * 32, heads, kv_heads, peer=peer),
        decode("B128 L1024", [1024] * 128, heads, kv_heads, peer=peer),
        decode("B1 L32768", [32768], heads, kv_heads, peer=peer),
    ]


def decode_others(peer: FlashInfer | None) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    ragged = torch.randint(100, 8000, (64,), generator=generator).tolist()
    return [
        decode("B64 ragged", ragged, 32, 8, peer=peer),
        decode("B1 L4096", [4096], 32, 8, peer=peer),
        decode("B32 L4096", [4096] * 32, 32, 8, block=64, peer=peer),
        decode("B32 L4096", [4096] * 32, 32, 8, head_dim=64, peer=peer),
        decode("B32 L4096", [4096] * 32, 16, 8, head_dim=256, peer=peer),
    ]


def eight_bits() -> list[Row]:
    batches = {"B64 L8192": [8192] * 64, "B32 L4096": [4096] * 32, "B128 L1024": [1024] * 128, "B1 L32768": [32768]}
    rows = []
    for dtype in (torch.int8, torch.float8_e4m3fn):
        rows += [decode(name, lengths, 32, 8, dtype=dtype) for name, lengths in batches.items()]
        rows += prefill([8192], [8192], 32, 8, dtype=dtype)
    return rows


def cascade_rows() -> list[Row]:
    return [
        cascade(256, 2048, 128, 32, 8),
        cascade(256, 2048, 128, 40, 40),
        cascade(64, 8192, 256, 32, 8),
        *[cascade(count, 2048, 128, 32, 8) for count in (2, 4, 8, 16, 32, 64)],
        *[cascade(count, 16384, 256, 32, 8) for count in (2, 4, 8)],
    ]


def prefill_rows() -> list[Row]:
    batches = [
        prefill([8192], [8192], 32, 8),
        prefill([8192], [8192], 32, 8, shuffled=False),
        prefill([32768], [32768], 32, 8),
        prefill([8192], [8192], 32, 32),
        prefill([2048] * 4, [2048] * 4, 32, 8),
        prefill([512] * 16, [512] * 16, 32, 8),
        prefill([512], [8192], 32, 8),
        prefill([16], [32768], 32, 8),
        prefill([32], [8192], 32, 8),
        prefill([8] * 16, [8192] * 16, 32, 8),
        prefill([8192], [8192], 32, 8, head_dim=64),
        prefill([2048] * 4, [2048] * 4, 32, 8, head_dim=64),
        prefill([8192], [8192], 32, 8, head_dim=96),
        prefill([8192], [8192], 16, 8, head_dim=256),
        prefill([2048] * 4, [2048] * 4, 16, 8, head_dim=256),
    ]
    return [r for rows in batches for r in rows]


def torch_sample(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """As a service without kernels of its own would."""
    logits = logits.float() / 0.8
    if top_k or top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        if top_k:
            ordered[:, top_k:] = -torch.inf
        mass = ordered.softmax(dim=-1)
        ordered.masked_fill_(mass.cumsum(dim=-1) - mass >= top_p, -torch.inf)
        logits = logits.scatter(1, order, ordered)
    return (logits.softmax(dim=-1) / torch.empty_like(logits).exponential_()).argmax(dim=-1)


def sample(rows: int, vocab: int, top_k: int, top_p: float, dtype: torch.dtype = torch.float32) -> Row:
    n = rotations(rows * vocab * dtype.itemsize)
    logits = [(torch.randn(rows, vocab, device="cuda") * 3).to(dtype) for _ in range(n)]
    seeds, zeros = torch.arange(rows, device="cuda"), torch.zeros(rows, dtype=torch.int32, device="cuda")
    ones = torch.ones(rows, device="cuda")
    columns = (seeds, zeros, zeros, ones * 0.8, zeros + top_k, ones * top_p, ones * 0.0)
    seconds = measure([lambda x=x: ops.sample(x, *columns) for x in logits])
    peer = measure([lambda x=x: torch_sample(x, top_k, top_p) for x in logits[:4]], replays=5)
    floor = rows * vocab * dtype.itemsize / READ
    shape = f"{rows} x {vocab} {str(dtype)[6:]} top-k {top_k} top-p {top_p}"
    return row("sample", shape, seconds, floor, ("torch", peer))


def sample_rows() -> list[Row]:
    limits = ((0, 1.0), (50, 0.9), (0, 0.9))
    rows = [sample(rows, 128_256, *limit) for rows in (1, 32, 64, 256) for limit in limits]
    return rows + [sample(64, 128_256, *limit, torch.bfloat16) for limit in limits]


# (N, K) of a layer's products in their order, how many layers, and of the head.
DECODERS = {
    "8B": ([(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)], 32, (128256, 4096)),
    "13B": ([(15360, 5120), (5120, 5120), (27648, 5120), (5120, 13824)], 40, (32000, 5120)),
    "0.6B": ([(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)], 28, (151936, 1024)),
}
LINEAR_ROWS = (1, 2, 4, 8, 16, 32, 64)


def linear(shape: str, rows: int, weights: list[Tensor], calls: int = 1) -> Row:
    """A sequence of products, one after the other, as `calls` calls of what `shape` names; cuBLAS runs the same one."""
    x = {w.shape[1]: bf16(rows, w.shape[1]) for w in weights}
    out = {w.shape[0]: bf16(rows, w.shape[0]) for w in weights}
    n = len(weights) / calls
    ours = measure([lambda w=w: ops.linear(x[w.shape[1]], w, out=out[w.shape[0]]) for w in weights], replays=9)
    torch_mm = [lambda w=w: torch.mm(x[w.shape[1]], w.T, out=out[w.shape[0]]) for w in weights]
    return row("linear", f"{rows} x {shape}", ours * n, sum(w.nbytes for w in weights) / calls / READ,
               ("cuBLAS", measure(torch_mm, replays=9) * n))  # fmt: skip


def linear_rows() -> list[Row]:
    rows = []
    for name, (layer, layers, head) in DECODERS.items():
        weights = [[bf16(*shape) for shape in layer] for _ in range(layers)]
        last = bf16(*head)
        rows += [linear(f"{name} decoder", n, [w for part in weights for w in part] + [last]) for n in LINEAR_ROWS]
        for i, (columns, depth) in enumerate(layer):
            same = [part[i] for part in weights]
            rows += [linear(f"{columns} x {depth}", n, same, len(same)) for n in LINEAR_ROWS]
        rows += [linear(f"{head[0]} x {head[1]}", n, [last, last.clone()], 2) for n in LINEAR_ROWS]
    return rows


def groups(peer: FlashInfer | None) -> dict[str, Callable[[], list[Row]]]:
    """The rows by name; `peer` stands beside those of decode."""
    return {
        "decode": partial(decode_table, 32, 8, peer),
        "decode-64/8": partial(decode_table, 64, 8, peer),
        "decode-40/40": partial(decode_table, 40, 40, peer),
        "decode-others": partial(decode_others, peer),
        "8-bit": eight_bits,
        "cascade": cascade_rows,
        "prefill": prefill_rows,
        "fused": fused_rows,
        "copy": copy_rows,
        "linear": linear_rows,
        "swap": swap_rows,
        "sample": sample_rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--only", choices=groups(None), action="append")
    parser.add_argument("--flashinfer", action="store_true", help="put FlashInfer's decode beside ours")
    arguments = parser.parse_args()
    named = groups(FlashInfer() if arguments.flashinfer else None)
    torch.manual_seed(0)
    print("operation | shape | us | floor us | % of floor | peer | peer us | times faster")
    rows = [r for name in arguments.only or named for r in named[name]()]
    if arguments.out:
        header = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        }
        ceilings = {"read_bytes_per_s": READ, "copy_bytes_per_s": COPY, "bf16_flop_per_s": MATMUL}
        text = json.dumps({**header, "ceilings": ceilings, "rows": [asdict(r) for r in rows]}, indent=1)
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
