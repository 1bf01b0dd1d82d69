"""Products by head: each head's part of a row with that head's matrix, as around the scores of latent attention."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from octavo_kernels import _cpu, cuda
from octavo_kernels.call import check, check_devices, float_type
from octavo_kernels.operands import DTYPES, address, rows_at

OLDEST = 8
"""The first chips whose tensor cores take bfloat16."""
MOST_ROWS = 64
"""Rows up to which our kernel is taken where bits may depend on their number: more feed the tensor cores better by
torch's libraries, which read a matrix once for all of them."""


class HeadProduct(NamedTuple):
    """`x[T, heads, K]` times `weight[heads * N, K]`, one head's matrix below the other's, into `out[T, heads, N]`, all
    of one type. Heads and rows of `x` and `out` may lie apart. `uniform` (Hopper only): a row's bits depend neither on
    the other rows nor on their number; on a CPU they never do."""

    x: Tensor
    weight: Tensor
    out: Tensor
    uniform: bool = False


def by_head(p: HeadProduct) -> Tensor:
    """The product, summed in float32. On CUDA weights are read from before the stream's previous kernel has ended: they
    must be older than it. Raises `TypeError` or `ValueError`, naming the operand, for one that does not fit."""
    prepare(p)
    if p.x.is_cpu:
        return _on_cpu(p)
    if is_launched(p):
        cuda.run("by_head", p.x.device, *operands(p))
        return p.out
    if p.uniform:
        raise ValueError(
            "x must be of 16 bits for a uniform product on a GPU, its heads and rows at multiples of 16 bytes"
        )
    matrices = p.weight.view(p.x.shape[1], p.out.shape[2], p.x.shape[2])
    torch.bmm(p.x.transpose(0, 1), matrices.transpose(1, 2), out=p.out.transpose(0, 1))
    return p.out


def prepare(p: HeadProduct) -> None:
    """Checks all operands. Raises `TypeError` or `ValueError`, naming the operand."""
    float_type("x", p.x)
    check("x", p.x, p.x.dtype, (None, None, None))
    rows, heads, depth = p.x.shape
    check("out", p.out, p.x.dtype, (rows, heads, None))
    check("weight", p.weight, p.x.dtype, (heads * p.out.shape[2], depth))
    if not p.weight.is_contiguous():
        raise ValueError("weight must have its rows side by side")
    check_devices({"x": p.x, "weight": p.weight, "out": p.out})


def is_launched(p: HeadProduct) -> bool:
    """True if our kernel computes it on a GPU."""
    if p.x.dtype not in cuda.HALF or not cuda.has_tensor_cores() or cuda.chip(p.x.device).major < OLDEST:
        return False
    if p.uniform or len(p.x) <= MOST_ROWS:
        apart = (p.x.stride(0), p.x.stride(1), p.x.shape[2])
        starts = (p.x.data_ptr(), p.weight.data_ptr())
        return not any(stride % 8 for stride in apart) and not any(start % 16 for start in starts)
    return False


def operands(p: HeadProduct) -> tuple[object, ...]:
    """The product as the module takes it."""
    rows, heads, depth = p.x.shape
    x, out = ((t.data_ptr(), t.stride(0), t.stride(1)) for t in (p.x, p.out))
    return DTYPES[p.x.dtype], x, p.weight.data_ptr(), out, rows, heads, p.out.shape[2], depth


def _on_cpu(p: HeadProduct) -> Tensor:
    rows, heads, depth = p.x.shape
    starts = torch.arange(heads + 1, dtype=torch.int32) * rows
    x, made = p.x.transpose(0, 1).reshape(-1, depth), p.x.new_empty(heads * rows, p.out.shape[2])
    shape = (heads * rows, made.shape[1], depth)
    _cpu.grouped_linear(
        DTYPES[x.dtype], rows_at(x), rows_at(p.weight), 0, rows_at(made), *shape, address(starts), heads
    )
    return p.out.copy_(made.view(heads, rows, -1).transpose(0, 1))
