"""Sums between two sublayers, and their norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.call import check, check_devices, float_type, output, rows_of
from octavo_kernels.operands import RmsNorm, address, norm_at, rows_at
from octavo_kernels.products.norm import rms_norm


class Addend(NamedTuple):
    """Rows `[T, H]`, or their norm."""

    rows: Tensor
    norm: RmsNorm | None = None


def add_norms(
    hidden: Tensor,
    addends: Sequence[Addend],
    *,
    post: RmsNorm | None = None,
    factor: float = 1.0,
    scalar: Tensor | None = None,
    norm: RmsNorm | None = None,
    out: Tensor | None = None,
) -> Tensor | None:
    """Residual stream `hidden[T, H] = scalar[1] * (hidden + factor * post(sum of one or two addends))`, in place, and
    its norm, if there is a `norm`, into `out[T, H]`. Each step is rounded to the type of all. Overwrites the addends.

    On CUDA one launch, whose norms' weights must be older than the stream's previous kernel. Raises `TypeError` or
    `ValueError`, naming the argument, for what does not fit."""
    dtype = float_type("hidden", hidden)
    shape = rows_of("hidden", hidden)
    if not 1 <= len(addends) <= 2:
        raise ValueError(f"addends must be one or two, not {len(addends)}")
    for addend in addends:
        check("addends", addend.rows, hidden.dtype, shape)
    for each in (post, norm, *(addend.norm for addend in addends)):
        if each is not None:
            check("norm.weight", each.weight, hidden.dtype, shape[1:])
    if scalar is not None:
        check("scalar", scalar, hidden.dtype, (1,))
    out = None if norm is None else output(out, hidden, shape)
    tensors = {"hidden": hidden, "addends": addends[0].rows, "scalar": scalar, "out": out}
    if check_devices(tensors).type == "cpu":
        return _on_cpu(hidden, addends, post, factor, scalar, norm, out)
    first, second = [*[(rows_at(a.rows), norm_at(a.norm)) for a in addends], (rows_at(None), norm_at(None))][:2]
    cuda.run(
        "add_norms", hidden.device,
        dtype, first, second, norm_at(post), factor, address(scalar), rows_at(hidden), norm_at(norm), rows_at(out),
        *shape,
    )  # fmt: skip
    return out


def _on_cpu(
    hidden: Tensor,
    addends: Sequence[Addend],
    post: RmsNorm | None,
    factor: float,
    scalar: Tensor | None,
    norm: RmsNorm | None,
    out: Tensor | None,
) -> Tensor | None:
    delta, *others = [_normed(addend.rows, addend.norm, addend.rows) for addend in addends]
    for other in others:
        delta.add_(other)
    delta = _normed(delta, post, delta)
    if factor != 1.0:
        delta.mul_(factor)
    if norm is not None and scalar is None:
        return rms_norm(delta, norm.weight, norm.eps, out=out, residual=hidden, offset=norm.offset)
    hidden.add_(delta)
    if scalar is not None:
        hidden.mul_(scalar)
    return None if out is None else _normed(hidden, norm, out)


def _normed(rows: Tensor, norm: RmsNorm | None, out: Tensor) -> Tensor:
    return rows if norm is None else rms_norm(rows, norm.weight, norm.eps, out=out, offset=norm.offset)
