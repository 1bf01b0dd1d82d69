"""Products of the rows of a batch with quantised weights."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import cuda, reference
from octavo_kernels.products import coded_cuda, dense_cuda, quantised_cpu, w8a8
from octavo_kernels.products import dense as dense_products
from octavo_kernels.products.activation import Gate, act_and_mul, code_of
from octavo_kernels.products.coded import CodedWeight
from octavo_kernels.products.coded_choice import prefers_copy
from octavo_kernels.products.product import Product, prepare, without_norm
from octavo_kernels.products.weights import Activations, PackedWeight, QuantisedWeight, dequantise
from octavo_kernels.products.weights import check as check_weight


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


def linear(p: Product[PackedWeight]) -> Tensor:
    if (dense := _copied(p)) is not None:
        return dense_products.linear(dense)
    out = prepare(p)
    if coded_cuda.computes(p):
        coded_cuda.linear(p, out)
        return out
    if p.x.is_cuda and w8a8.launch(p, out):
        return out
    p = without_norm(p)
    if p.x.is_cpu:
        quantised_cpu.linear(p, out)
        return out
    x, matrix = _turned(p.x, p.weight), dequantise(p.weight).to(p.x.dtype)
    dense = Product(x, matrix, p.bias, out=out, residual=p.residual, uniform=p.uniform)
    if p.uniform:
        return dense_products.linear(dense)
    dense_cuda.library_linear(dense, out)
    return out


def gated_linear(p: Product[PackedWeight], kind: Gate, scratch: Tensor | None) -> Tensor:
    if (dense := _copied(p)) is not None:
        return dense_products.gated_linear(dense, kind, scratch)
    out = prepare(p, gated=True)
    if coded_cuda.computes(p):
        coded_cuda.gated_linear(p, kind, out, scratch)
        return out
    if p.x.is_cuda and w8a8.launch(p, out, code_of(kind)):
        return out
    return act_and_mul(linear(p._replace(out=scratch)), kind, out=out)


def _copied(p: Product[PackedWeight]) -> Product[Tensor] | None:
    """The product with the weight's copy, where that is faster."""
    if p.copy is None or p.uniform or not prefers_copy(len(p.x), cuda.chip(p.x.device)):
        return None
    return Product(p.x, p.copy, p.bias, out=p.out, residual=p.residual, norm=p.norm, normed=p.normed, factor=p.factor)


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
