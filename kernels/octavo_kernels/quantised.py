"""Products of the rows of a batch with quantised weights."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import coded_cuda, cuda, quantised_cpu, reference, w8a8
from octavo_kernels.activation import Gate, act_and_mul, code_of
from octavo_kernels.call import check, check_devices, float_type, output, rows_of
from octavo_kernels.coded import CodedWeight
from octavo_kernels.coded_choice import prefers_copy
from octavo_kernels.linear import gated_linear, linear
from octavo_kernels.norm import check_norm, normed_rows
from octavo_kernels.operands import RmsNorm
from octavo_kernels.weights import Activations, PackedWeight, QuantisedWeight, dequantise
from octavo_kernels.weights import check as check_weight


def pack(weight: QuantisedWeight) -> PackedWeight:
    """The weight for the kernels of the device that it lies on. Takes its tensors over: they must not be used again.
    Raises `TypeError` or `ValueError`, naming the field, if they do not fit together."""
    check_weight(weight)
    if weight.codes.is_cpu:
        return quantised_cpu.pack(weight)
    if coded_cuda.takes(weight):
        return coded_cuda.pack(weight)
    codes, scales = weight.codes.contiguous(), weight.scales.contiguous()
    return PackedWeight(weight.scheme, weight.columns, weight.depth, codes, scales, weight.zeros, weight.order)


def quantised_linear(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    residual: Tensor | None = None,
    norm: RmsNorm | None = None,
    normed: Tensor | None = None,
    uniform: bool = False,
    copy: Tensor | None = None,
) -> Tensor:
    """`linear` with a quantised weight: `x[T, depth]` to `[T, columns]` in the type of x.

    Sums are exact where both sides are integers, else float32. `norm` and `normed` as in `linear`, and so is `uniform`.
    `copy`, what `copy_of` gives, is multiplied in the weight's place where that is faster, unless `uniform`.
    """
    if copy is not None and not uniform and prefers_copy(len(x), cuda.chip(x.device)):
        return linear(x, copy, bias, out, residual, norm, normed)
    rows = _check(x, weight, bias, norm)
    if residual is not None:
        check("residual", residual, x.dtype, (rows, weight.columns))
    out = output(out, x, (rows, weight.columns))
    device = check_devices({"x": x, "weight": weight.codes, "bias": bias, "residual": residual, "out": out})
    if isinstance(weight, CodedWeight):
        coded_cuda.linear(x, weight, bias, residual, out, norm, normed, uniform)
        return out
    if device.type == "cuda" and w8a8.launch(x, weight, bias, residual, out, norm=norm, uniform=uniform):
        return out
    if norm is not None:
        x = normed_rows(x, norm, normed)
    if device.type == "cpu":
        quantised_cpu.linear(x, weight, bias, residual, out)
        return out
    x, matrix = _turned(x, weight), dequantise(weight).to(x.dtype)
    if uniform:
        return linear(x, matrix, bias, out, residual, uniform=True)
    cuda.library_linear(x, matrix, bias, residual, out)
    return out


def quantised_gated_linear(
    x: Tensor,
    weight: PackedWeight,
    kind: Gate,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    scratch: Tensor | None = None,
    norm: RmsNorm | None = None,
    normed: Tensor | None = None,
    uniform: bool = False,
    copy: Tensor | None = None,
) -> Tensor:
    """`act_and_mul(quantised_linear(x, weight, bias), kind)`; arguments as in `gated_linear` and there. Raises
    ValueError for an odd number of rows."""
    if copy is not None and not uniform and prefers_copy(len(x), cuda.chip(x.device)):
        return gated_linear(x, copy, kind, bias, out, scratch, norm, normed)
    if weight.columns % 2:
        raise ValueError(f"weight must have an even number of rows, not {weight.columns}")
    rows = _check(x, weight, bias, norm)
    out = output(out, x, (rows, weight.columns // 2))
    device = check_devices({"x": x, "weight": weight.codes, "bias": bias, "out": out})
    if isinstance(weight, CodedWeight):
        coded_cuda.gated_linear(x, weight, kind, bias, out, scratch, norm, normed, uniform)
        return out
    if device.type == "cuda" and w8a8.launch(x, weight, bias, None, out, code_of(kind), norm, uniform):
        return out
    product = quantised_linear(x, weight, bias, scratch, None, norm, normed, uniform)
    return act_and_mul(product, kind, out=out)


def takes_copy(weight: PackedWeight) -> bool:
    """True if some products with it are faster with a copy in 16 bits: those of many rows with weights of codes."""
    return isinstance(weight, CodedWeight)


def copy_of(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """`[columns, depth]`: each element is that of the weight, rounded to `dtype`. Raises TypeError for a weight that is
    not of codes on a GPU."""
    if not isinstance(weight, CodedWeight):
        raise TypeError("only a weight of codes on a GPU is copied")
    in_order = coded_cuda.dequantise(weight, dtype)
    if weight.order is None:
        return in_order
    copy = torch.empty_like(in_order)
    copy[:, weight.order.long()] = in_order
    return copy


def _check(x: Tensor, weight: PackedWeight, bias: Tensor | None, norm: RmsNorm | None) -> int:
    """Returns the number of rows."""
    float_type("x", x)
    rows, depth = rows_of("x", x)
    if depth != weight.depth:
        raise ValueError(f"x must have {weight.depth} columns, not {depth}")
    if bias is not None:
        check("bias", bias, x.dtype, (weight.columns,))
    check_norm(norm, x)
    return rows


def _turned(x: Tensor, weight: PackedWeight) -> Tensor:
    """The values that the codes of x stand for. The last group of a row may be shorter than the others."""
    scheme = weight.scheme
    if scheme.activations is Activations.AS_GIVEN:
        return x
    dtype = torch.int8 if scheme.activations is Activations.INT8 else torch.float8_e4m3fn
    group = scheme.activation_group or weight.depth
    groups = torch.nn.functional.pad(x.float(), (0, -weight.depth % group)).unflatten(1, (-1, group))
    codes, scales = reference.quantise(groups, dtype)
    return (codes.float() * scales).flatten(1)[:, : weight.depth].to(x.dtype)
