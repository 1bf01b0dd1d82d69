"""Every operation in plain PyTorch, for tests: slow, short, and as precise as the dtype of its arguments.

Pass float64 tensors to get an oracle. The cache here is simply K and V by slot: `[num_slots, kv_heads, head_dim]`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (offset + weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def act(x: Tensor, kind: str) -> Tensor:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
        "relu": torch.relu,
        "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    }
    return functions[kind](x)


def act_and_mul(x: Tensor, kind: str) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return act(gate, kind) * up


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, factor: float = 1.0
) -> Tensor:
    y = x @ weight.T
    y = y if bias is None else y + bias
    return y if residual is None else factor * y + residual


def rope(x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotates the first `rotary_dim` values of each head of `x[T, heads, head_dim]`."""
    rotary_dim = cos_sin.shape[1]
    cos, sin = cos_sin[positions].to(x.dtype)[:, None].chunk(2, dim=-1)
    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    a, b = turned.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """One sequence: `q[n, heads, head_dim]` against `k, v[L, kv_heads, head_dim]`, causal, bottom-right aligned."""
    queries, heads, _ = q.shape
    length, kv_heads, _ = k.shape
    k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    query = torch.arange(length - queries, length, device=q.device)[:, None]
    key = torch.arange(length, device=q.device)[None]
    seen = key <= query
    if sliding_window > 0:
        seen &= key > query - sliding_window
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores)[:, None, None].expand(-1, queries, 1)), dim=-1)
    weights = scores.softmax(-1)[..., :length].nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, v)


def quantise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cells (`dtype`: int8 or float8_e4m3fn) and float32 scales `[..., 1]` of the rows of `x`, float32, all finite."""
    most = x.abs().amax(-1, keepdim=True)
    largest = torch.full_like(most, 127.0 if dtype is torch.int8 else 448.0)  # scalar / tensor would round twice
    cells = x * torch.where(most < 1e-30, 0.0, largest / most)
    return (cells.round() if dtype is torch.int8 else cells).to(dtype), torch.where(most < 1e-30, 0.0, most / largest)


def philox(seed: int, counters: np.ndarray) -> np.ndarray:
    """Philox4x32-10 of `counters[n, 4]` (uint32): `[n, 4]` uint32."""
    c = counters.astype(np.uint64)
    key = np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = c[:, 0] * np.uint64(0xD2511F53), c[:, 2] * np.uint64(0xCD9E8D57)
        shift = np.uint64(32)
        c = np.stack(((p1 >> shift) ^ c[:, 1] ^ key[0], p1 & low, (p0 >> shift) ^ c[:, 3] ^ key[1], p0 & low), axis=1)
        key = (key + np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)) & low
    return c.astype(np.uint32)


def gumbel(seed: int, index: int, position: int, vocab: int) -> Tensor:
    """The noise of one row, float64 `[vocab]`."""
    groups = (vocab + 3) // 4
    counters = np.zeros((groups, 4), dtype=np.uint32)
    counters[:, 0], counters[:, 1], counters[:, 2] = np.arange(groups), position, index
    u = (philox(seed, counters).reshape(-1)[:vocab].astype(np.float64) + 0.5) * 2.0**-32
    return torch.from_numpy(-np.log(-np.log(u)))


def kept(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Which entries of `scaled[V]` (logits over temperature) pass the filters."""
    keep = torch.ones_like(scaled, dtype=torch.bool)
    if 0 < top_k < len(scaled):
        keep &= scaled >= scaled.topk(top_k).values[-1]
    mass = (scaled - scaled.max()).exp()
    if top_p < 1.0:
        order = scaled.masked_fill(~keep, float("-inf")).sort(descending=True)
        cumulative = mass.masked_fill(~keep, 0.0)[order.indices].cumsum(0)
        last = int((cumulative < top_p * cumulative[-1]).sum())
        keep &= scaled >= order.values[last]
    return keep & (mass >= min_p)


def sample(
    logits: Tensor, seed: int, index: int, position: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> int:
    """One row."""
    if temperature == 0:
        return int(logits.argmax())
    scaled = logits / temperature
    noisy = scaled + gumbel(seed, index, position, len(logits))
    return int(noisy.masked_fill(~kept(scaled, top_k, top_p, min_p), float("-inf")).argmax())
