"""A product as one value, the checks of its operands, and its norm where no launch takes that along."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from octavo_kernels.call import check, check_devices, float_type, output, rows_of
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products.norm import rms_norm
from octavo_kernels.products.weights import PackedWeight

W = TypeVar("W", bound=Tensor | PackedWeight, covariant=True)


class Product(NamedTuple, Generic[W]):
    """`x[T, K] @ weight[N, K].T`, plus `bias[N]`, times `factor`, plus `residual[T, N]` (which may be `out`), into
    `out[T, N]`, which is made if there is none; rounded once, but by torch's libraries. All but a packed weight has the
    dtype of `x`. A `factor` is of a product with a residual and a weight that is not packed.

    With `norm`, x is `rms_norm(x, norm)`, bit for bit; on CUDA, with one row, in the same launch. `normed[T, K]` is
    where those rows go if they have to be stored.
    `uniform` (Hopper only): a row's bits depend neither on the other rows nor on their number.
    `counter[1]`, an int32 zero that one stream at a time may use, makes large products of a few rows on CUDA faster
    and changes no bit: multiprocessors that are done draw the next rows of the weights. It is zero again afterwards.
    `copy[N, K]`, what `copy_of` gives, is multiplied in a packed weight's place where that is faster, unless `uniform`.

    A tuple, which is made in a third of the time of a frozen dataclass: a step makes hundreds.
    """

    x: Tensor
    weight: W
    bias: Tensor | None = None
    out: Tensor | None = None
    residual: Tensor | None = None
    norm: RmsNorm | None = None
    normed: Tensor | None = None
    uniform: bool = False
    counter: Tensor | None = None
    copy: Tensor | None = None
    factor: float = 1.0


def prepare(p: Product[Any], *, gated: bool = False) -> Tensor:
    """Checks all operands. Returns where the product goes, `[T, N]`, or that of a gate, `[T, N / 2]`. Raises
    `TypeError` or `ValueError`, naming the operand."""
    x, weight = p.x, p.weight
    float_type("x", x)
    rows, depth = rows_of("x", x)
    if isinstance(weight, PackedWeight):
        if depth != weight.depth:
            raise ValueError(f"x must have {weight.depth} columns, not {depth}")
        columns = weight.columns
    else:
        check("weight", weight, x.dtype, (None, depth))
        columns = weight.shape[0]
    if gated and columns % 2:
        raise ValueError(f"weight must have an even number of rows, not {columns}")
    if p.bias is not None:
        check("bias", p.bias, x.dtype, (columns,))
    if p.residual is not None:
        if gated:
            raise ValueError("residual is not for a product with a gate")
        check("residual", p.residual, x.dtype, (rows, columns))
    if p.factor != 1.0 and (p.residual is None or isinstance(weight, PackedWeight)):
        raise ValueError("factor is for a product with a residual and a weight that is not packed")
    if p.norm is not None:
        check("norm.weight", p.norm.weight, x.dtype, (depth,))
    if p.counter is not None:
        check("counter", p.counter, torch.int32, (1,))
    out = output(p.out, x, (rows, columns // 2 if gated else columns))
    _check_devices(p, out)
    return out


def without_norm(p: Product[W]) -> Product[W]:
    """The same product of rows that are normed by now."""
    if p.norm is None:
        return p
    x = rms_norm(p.x, p.norm.weight, p.norm.eps, out=p.normed, offset=p.norm.offset)
    return p._replace(x=x, norm=None)


def _check_devices(p: Product[Any], out: Tensor) -> None:
    """The good case builds nothing, as in `check`."""
    matrix = p.weight.codes if isinstance(p.weight, PackedWeight) else p.weight
    norm, device = None if p.norm is None else p.norm.weight, p.x.device
    if p.x.is_cpu or p.x.is_cuda:
        for tensor in (matrix, p.bias, p.residual, norm, out, p.counter):
            if tensor is not None and tensor.device != device:
                break
        else:
            return
    check_devices(
        {
            "x": p.x, "weight": matrix, "bias": p.bias, "residual": p.residual, "norm.weight": norm, "out": out,
            "counter": p.counter,
        }
    )  # fmt: skip
