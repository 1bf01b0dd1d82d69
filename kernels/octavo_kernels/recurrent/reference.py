"""The operations in plain PyTorch, for tests: one sequence and one token after another.

Columns and products that become columns are rounded to the type of x; all else is computed in the type of `matrices`
(float32, or float64 for an oracle).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_kernels.recurrent.operands import Convolution, GatedNorm, LayerStates, Moves


def sequences(moves: Moves) -> Iterator[tuple[int, int, int, int, dict[int, list[int]]]]:
    """First row, end, slot read, slot written and, by number of rows, slots kept of each sequence."""
    starts, read, write, keep_start, after, slot = (tensor.tolist() for tensor in moves)
    for s in range(len(read)):
        keeps: dict[int, list[int]] = {}
        for k in range(keep_start[s], keep_start[s + 1]):
            keeps.setdefault(after[k], []).append(slot[k])
        yield starts[s], starts[s + 1], read[s], write[s], keeps


def convolve(inputs: Tensor, columns: Tensor, moves: Moves, convolution: Convolution, dtype: torch.dtype) -> Tensor:
    """`[T, channels]` in `dtype`: the convolution of `inputs[T, channels]`; advances `columns`."""
    weight = convolution.weight.to(dtype)
    taps, channels = weight.shape
    out = torch.empty(inputs.shape, dtype=dtype)
    for begin, end, read, write, keeps in sequences(moves):
        before = columns[read].clone() if read else torch.zeros(taps - 1, channels, dtype=columns.dtype)
        line = torch.cat((before, inputs[begin:end]))
        for t in range(end - begin):
            sum_ = torch.zeros(channels, dtype=dtype)
            for j in range(taps):
                sum_ = sum_ + weight[j] * line[t + j].to(dtype)
            out[begin + t] = sum_ if convolution.bias is None else sum_ + convolution.bias.to(dtype)
            for slot in keeps.get(t + 1, ()):
                if slot:
                    columns[slot] = line[t + 1 : t + taps]
        if write:
            columns[write] = line[end - begin :]
    return out


def gated_norm(y: Tensor, gate: Tensor, norm: GatedNorm) -> Tensor:
    """The norm of `y[T, width]` with `gate[T, width]`, both in the type of y."""
    gate = F.silu(gate)
    if norm.weight is None:
        return y * gate
    y = y * gate if norm.gate_first else y
    groups = y.unflatten(-1, (-1, norm.group))
    scaled = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + norm.eps)
    normed: Tensor = scaled.flatten(-2) * norm.weight.to(y.dtype)
    return normed if norm.gate_first else normed * gate


def delta_step(
    x: Tensor,
    states: LayerStates,
    moves: Moves,
    convolution: Convolution,
    norm: GatedNorm,
    *,
    key_heads: int,
    rates: Tensor,
    dt_bias: Tensor,
    beta_scale: float = 1.0,
) -> Tensor:
    """See `delta.delta_step`."""
    assert states.matrices is not None
    dtype = states.matrices.dtype
    _, heads, key_dim, value_dim = states.matrices.shape
    keys, values = key_heads * key_dim, heads * value_dim
    mixed, z, b, a = x.split((2 * keys + values, values, heads, heads), dim=-1)
    mixed = F.silu(convolve(mixed, states.columns, moves, convolution, dtype))
    q, k, v = mixed.split((keys, keys, values), dim=-1)
    q, k = (t.unflatten(-1, (key_heads, key_dim)) for t in (q, k))
    q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q, k = (t.repeat_interleave(heads // key_heads, dim=1) for t in (q * key_dim**-0.5, k))
    v = v.unflatten(-1, (heads, value_dim))
    beta = beta_scale * torch.sigmoid(b.to(dtype))
    decay = torch.exp(rates.to(dtype) * F.softplus(a.to(dtype) + dt_bias.to(dtype)))
    y = torch.empty(len(x), heads, value_dim, dtype=dtype)
    for begin, end, read, write, keeps in sequences(moves):
        state = states.matrices[read].clone() if read else torch.zeros_like(states.matrices[0])
        for t in range(begin, end):
            state = state * decay[t, :, None, None]
            d = beta[t, :, None] * (v[t] - torch.einsum("hkv,hk->hv", state, k[t]))
            state = state + k[t, :, :, None] * d[:, None, :]
            y[t] = torch.einsum("hkv,hk->hv", state, q[t])
            _keep(states.matrices, state, keeps.get(t - begin + 1, ()))
        _keep(states.matrices, state, (write,))
    return gated_norm(y.flatten(1), z.to(dtype), norm).to(x.dtype)


def ssm_step(
    x: Tensor,
    states: LayerStates,
    moves: Moves,
    convolution: Convolution,
    norm: GatedNorm,
    *,
    groups: int,
    rates: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
) -> Tensor:
    """See `ssm.ssm_step`."""
    assert states.matrices is not None
    dtype = states.matrices.dtype
    _, heads, size, head_dim = states.matrices.shape
    inner, shared = heads * head_dim, groups * size
    z, mixed, dt = x.split((inner, inner + 2 * shared, heads), dim=-1)
    mixed = F.silu(convolve(mixed, states.columns, moves, convolution, dtype))
    values, b, c = mixed.split((inner, shared, shared), dim=-1)
    values = values.unflatten(-1, (heads, head_dim))
    b, c = (t.unflatten(-1, (groups, size)).repeat_interleave(heads // groups, dim=1) for t in (b, c))
    dt = F.softplus(dt.to(dtype) + dt_bias.to(dtype)).clamp(*dt_limit)
    decay = torch.exp(rates.to(dtype) * dt)
    y = torch.empty(len(x), heads, head_dim, dtype=dtype)
    for begin, end, read, write, keeps in sequences(moves):
        state = states.matrices[read].clone() if read else torch.zeros_like(states.matrices[0])
        for t in range(begin, end):
            d = dt[t, :, None] * values[t]
            state = state * decay[t, :, None, None] + b[t, :, :, None] * d[:, None, :]
            y[t] = torch.einsum("hkv,hk->hv", state, c[t]) + skip.to(dtype)[:, None] * values[t]
            _keep(states.matrices, state, keeps.get(t - begin + 1, ()))
        _keep(states.matrices, state, (write,))
    return gated_norm(y.flatten(1), z.to(dtype), norm).to(x.dtype)


def conv_step(x: Tensor, states: LayerStates, moves: Moves, convolution: Convolution) -> Tensor:
    """See `short_conv.conv_step`."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    b, c, values = x.chunk(3, dim=-1)
    mixed = convolve((b.to(dtype) * values.to(dtype)).to(x.dtype), states.columns, moves, convolution, dtype)
    return (c.to(dtype) * mixed).to(x.dtype)


def _keep(matrices: Tensor, state: Tensor, slots: list[int] | tuple[int, ...]) -> None:
    for slot in slots:
        if slot:
            matrices[slot] = state
