"""Attention of prompts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernel_rows.measuring import MATMUL, READ, Row, measure_by_turns, row
from kernel_rows.paged import Cache
from octavo_kernels import ops
from octavo_kernels.attention.plan import AttentionPlan, chunk_count, only_prompts


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
    plan = AttentionPlan(
        sequences=len(queries), tokens=tokens,
        chunks=chunk_count(context, queries, heads // kv_heads),
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, max_queries=max(queries),
        shared_prefixes=dtype.itemsize == 2,
    )  # fmt: skip
    plan.update(cache.lengths, starts, decodes=not only_prompts(context, queries, heads // kv_heads))

    def call(layer: int) -> None:
        ops.paged_attention(
            q, cache.pool[:, layer], cache.tables, cache.lengths, starts, out, head_dim**-0.5, block, plan=plan
        )

    rivals = torch_prefill(queries, context, heads, kv_heads, head_dim) if dtype.itemsize == 2 else {}
    times = measure_by_turns({"octavo": [lambda i=i: call(i) for i in range(layers)], **rivals}, replays=7)
    seconds = times.pop("octavo")
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
    for name, peer in times.items() or [("", None)]:
        print(f"{operations / seconds / 1e12:.0f} TFLOP/s", end=" | ")
        rows.append(row("prefill", shape, seconds, max(operations / MATMUL, moved / READ), peer and (name, peer)))
    return rows


def torch_prefill(
    queries: list[int], context: list[int], heads: int, kv_heads: int, head_dim: int
) -> dict[str, list[Callable[[], Tensor]]]:
    """Torch's own kernels on contiguous tensors, where all prompts are whole and of one length."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if queries != context or len(set(queries)) > 1:
        return {}

    def make(count: int) -> Tensor:
        return torch.randn(len(queries), count, queries[0], head_dim, dtype=torch.bfloat16, device="cuda")

    q, k, v = make(heads), make(kv_heads), make(kv_heads)

    def attend(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    peers = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
    return {f"torch {name} (contiguous)": [lambda b=b: attend(b)] * 2 for name, b in peers.items()}


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
