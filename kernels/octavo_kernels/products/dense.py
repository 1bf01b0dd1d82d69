"""Products with weights in the type of the rows."""

from __future__ import annotations

from torch import Tensor

from octavo_kernels import _cpu
from octavo_kernels.operands import DTYPES, address, rows_at
from octavo_kernels.products import dense_cuda
from octavo_kernels.products.activation import Gate, act_and_mul, code_of
from octavo_kernels.products.product import Product, prepare, without_norm


def linear(p: Product[Tensor]) -> Tensor:
    out = prepare(p)
    if p.x.is_cuda:
        if p.norm is not None and not p.uniform and dense_cuda.launch_linear(p, out):
            return out
        p = without_norm(p)
        if p.uniform:
            dense_cuda.linear_uniform(p, out)
        else:
            dense_cuda.linear(p, out)
        return out
    p = without_norm(p)
    rows, columns = out.shape
    _cpu.linear(
        DTYPES[p.x.dtype], rows_at(p.x), rows_at(p.weight), address(p.bias), rows_at(p.residual), p.factor,
        rows_at(out), rows, columns, p.x.shape[1],
    )  # fmt: skip
    return out


def gated_linear(p: Product[Tensor], kind: Gate, scratch: Tensor | None) -> Tensor:
    out, activation = prepare(p, gated=True), code_of(kind)
    ours = p.x.is_cuda and not p.uniform
    if ours and dense_cuda.launch_linear(p, out, activation):
        return out
    if p.norm is not None:
        p = without_norm(p)
        if ours and dense_cuda.launch_linear(p, out, activation):
            return out
    return act_and_mul(linear(p._replace(out=scratch)), kind, out=out)
