"""Launches of products with weights of codes on a GPU, for rows in the type they are given in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from octavo_kernels import coded_choice, cuda
from octavo_kernels.activation import Gate, act_and_mul, code_of
from octavo_kernels.choice import TENSOR_CORES, Ending
from octavo_kernels.coded import CodedWeight, bricks_of, lay_out
from octavo_kernels.coded_choice import CodedKernel, CodedLaunch
from octavo_kernels.norm import normed_rows
from octavo_kernels.operands import DTYPES, RmsNorm, address, rows_at
from octavo_kernels.weights import QuantisedWeight, Scheme


def takes(weight: QuantisedWeight) -> bool:
    """True if a weight is to lie as these kernels read it."""
    return weight.codes.is_cuda and knows(weight.scheme, weight.depth, weight.codes.device)


def knows(scheme: Scheme, depth: int, device: torch.device) -> bool:
    """True if there are kernels for such a weight on a GPU."""
    if not cuda.available() or bricks_of(scheme, depth) is None:
        return False
    return cuda.chip(device).major >= TENSOR_CORES


def pack(weight: QuantisedWeight) -> CodedWeight:
    """See `lay_out`. Kernels read weights from before the stream's previous one has ended: this one is there."""
    coded = lay_out(weight)
    torch.cuda.synchronize(coded.codes.device)
    return coded


def linear(
    x: Tensor,
    weight: CodedWeight,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    norm: RmsNorm | None,
    normed: Tensor | None,
    uniform: bool,
) -> None:
    """`quantised_linear`, whose arguments are checked. Raises ValueError where a uniform product has no kernel."""
    if not len(x):
        return
    if norm is not None:
        if not uniform and _launch(x, weight, bias, residual, out, norm=norm):
            return
        x = normed_rows(x, norm, normed)
    x = _in_order(x, weight)
    if _launch(x, weight, bias, residual, out, uniform=uniform):
        return
    if uniform:
        raise ValueError(f"no uniform product with rows of {x.dtype}, strides {x.stride()}, on {x.device}")
    cuda.library_linear(x, dequantise(weight, x.dtype), bias, residual, out)


def gated_linear(
    x: Tensor,
    weight: CodedWeight,
    kind: Gate,
    bias: Tensor | None,
    out: Tensor,
    scratch: Tensor | None,
    norm: RmsNorm | None,
    normed: Tensor | None,
    uniform: bool,
) -> None:
    """`quantised_gated_linear`, likewise."""
    if not len(x):
        return
    activation = code_of(kind)
    if norm is not None:
        if not uniform and _launch(x, weight, bias, None, out, activation, norm):
            return
        x = normed_rows(x, norm, normed)
    ordered = _in_order(x, weight)
    if _launch(ordered, weight, bias, None, out, activation, uniform=uniform):
        return
    product = torch.empty(len(x), weight.columns, dtype=x.dtype, device=x.device) if scratch is None else scratch
    linear(x, weight, bias, None, product, None, None, uniform)
    act_and_mul(product, kind, out=out)


def dequantise(weight: CodedWeight, dtype: torch.dtype) -> Tensor:
    """`[columns, depth]`, in the order of the codes, rounded once. Its memory is torch's, which hands it to the next
    weight when this one has been multiplied, inside of a graph, too."""
    out = torch.empty(weight.columns, weight.depth, dtype=dtype, device=weight.codes.device)
    cuda.run("dequantise", weight.codes.device, DTYPES[dtype], _matrix(weight), rows_at(out))
    return out


def _launch(
    x: Tensor,
    weight: CodedWeight,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    activation: int | None = None,
    norm: RmsNorm | None = None,
    uniform: bool = False,
) -> bool:
    """Launches one of our kernels for all of this, if the choice is one; returns whether it did."""
    in_eights = all(_in_eights(t) for t in (residual, out) if t is not None)
    launch = _choose(x, weight, bias, activation is not None, norm, uniform, in_eights)
    if launch is None or launch.kernel is CodedKernel.MATRIX:
        return False
    operands: tuple[Any, ...] = (
        DTYPES[x.dtype], rows_at(x), _matrix(weight), address(bias), rows_at(residual), rows_at(out), len(x),
        (activation is not None, activation or 0),
        cuda.NO_NORM if norm is None else (norm.weight.data_ptr(), norm.eps, norm.offset),
    )  # fmt: skip
    if launch.kernel is CodedKernel.FEW:
        return bool(cuda.launched("coded_few", x.device, *operands))
    if launch.kernel is CodedKernel.WIDE:
        tile = (launch.consumers, launch.tokens, launch.cluster)
        return bool(cuda.launched("coded_wide", x.device, *operands, tile))
    return bool(cuda.launched("coded_tiles", x.device, *operands, (launch.tokens, launch.cluster)))


def _choose(
    x: Tensor,
    weight: CodedWeight,
    bias: Tensor | None,
    gated: bool,
    norm: RmsNorm | None,
    uniform: bool,
    in_eights: bool = True,
) -> CodedLaunch | None:
    if x.dtype not in cuda.HALF or (norm is not None and weight.order is not None):
        return None
    if address(None if norm is None else norm.weight) % 16 or not _in_eights(x):
        return None
    ending = Ending.PLAIN if not gated else Ending.GATE if bias is None else Ending.BIASED_GATE
    return coded_choice.choose_coded(
        len(x), weight.columns, weight.depth, weight.bricks, ending, cuda.chip(x.device), norm is not None, uniform,
        in_eights,
    )  # fmt: skip


def _in_eights(rows: Tensor) -> bool:
    """True if each row begins at a multiple of 16 bytes."""
    return rows.data_ptr() % 16 == 0 and rows.stride(0) % 8 == 0


def _in_order(x: Tensor, weight: CodedWeight) -> Tensor:
    """The columns of x in the order of the codes that they meet."""
    return x if weight.order is None else x.index_select(1, weight.order)


def _matrix(weight: CodedWeight) -> tuple[object, ...]:
    """The module's `CodedMatrix` as a tuple."""
    scheme = weight.scheme
    return (
        int(scheme.codes), scheme.group, weight.codes.data_ptr(), weight.scales.data_ptr(), address(weight.zeros),
        weight.columns, weight.depth,
    )  # fmt: skip
