"""Norms, activations, rotation with the write to the cache."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kernel_rows.measuring import COPY, Row, bf16, measure, rotations, row
from octavo_kernels import ops


def rms_norm(tokens: int, width: int, adds: bool) -> Row:
    """With an addition to the residual stream before it, or, as where a product has added itself, without."""
    moved = (4 if adds else 2) * tokens * width * 2
    n = rotations(moved)
    x, out, weight = bf16(n, tokens, width), bf16(n, tokens, width), bf16(width)
    residual = bf16(n, tokens, width) if adds else [None] * n
    calls = [lambda i=i: ops.rms_norm(x[i], weight, 1e-5, out=out[i], residual=residual[i]) for i in range(n)]

    def peer(i: int) -> Tensor:
        return torch.nn.functional.rms_norm(residual[i].add_(x[i]) if adds else x[i], (width,), weight, 1e-5)

    seconds = measure(calls)
    peer_seconds = measure([partial(peer, i) for i in range(n)])
    name = "residual + rms_norm" if adds else "rms_norm"
    return row(name, f"{tokens} x {width}", seconds, moved / COPY, ("torch", peer_seconds))


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
    """Into a cache of `dtype`. What moves is the projection, q, K and V, and each token's cosines, sines, position and
    slot."""
    columns = (heads + 2 * kv_heads) * head_dim
    written = heads * head_dim * 2 + ops.block_bytes(1, kv_heads, 16, head_dim, dtype) // 16
    moved = tokens * (columns * 2 + written + head_dim * 4 + 16)
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
    """Fused operations on a step's tokens: some decodes, half of a budget, all of it."""
    rows = []
    for tokens in (1, 32, 256, 4096, 8192):
        rows += [rms_norm(tokens, 4096, adds) for adds in (True, False)]
        rows += [silu_and_mul(tokens, 14336), rope_write(tokens, 32, 8, 128)]
        rows += [rope_write(tokens, 32, 8, 128, dtype) for dtype in (torch.int8, torch.float8_e4m3fn)]
    return rows
