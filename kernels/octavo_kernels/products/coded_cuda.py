"""Launches of products with weights of codes on a GPU, for rows in the type they are given in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.operands import DTYPES, address, norm_at, rows_at
from octavo_kernels.products import coded_choice, dense_cuda, shared_depth
from octavo_kernels.products.activation import Gate, act_and_mul, code_of
from octavo_kernels.products.choice import TENSOR_CORES, Ending
from octavo_kernels.products.coded import CodedWeight, bricks_of, lay_out
from octavo_kernels.products.coded_choice import CodedKernel, CodedLaunch
from octavo_kernels.products.product import COUNTERS, Product, without_norm
from octavo_kernels.products.weights import PackedWeight, QuantisedWeight, Scheme


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


def computes(p: Product[PackedWeight]) -> TypeGuard[Product[CodedWeight]]:
    return isinstance(p.weight, CodedWeight)


def linear(p: Product[CodedWeight], out: Tensor) -> None:
    """The product of checked operands. Raises ValueError where a uniform product has no kernel."""
    if not len(p.x):
        return
    if p.norm is not None and not p.uniform and launch(p, out):
        return
    p = _in_order(without_norm(p))
    if launch(p, out):
        return
    if p.uniform:
        raise ValueError(f"no uniform product with rows of {p.x.dtype}, strides {p.x.stride()}, on {p.x.device}")
    matrix = dequantise(p.weight, p.x.dtype)
    dense_cuda.library_linear(Product(p.x, matrix, p.bias, residual=p.residual), out)


def gated_linear(p: Product[CodedWeight], kind: Gate, out: Tensor, scratch: Tensor | None) -> None:
    """Likewise."""
    if not len(p.x):
        return
    activation = code_of(kind)
    if p.norm is not None and not p.uniform and launch(p, out, activation):
        return
    p = without_norm(p)
    if launch(_in_order(p), out, activation):
        return
    x = p.x
    product = torch.empty(len(x), p.weight.columns, dtype=x.dtype, device=x.device) if scratch is None else scratch
    linear(p, product)
    act_and_mul(product, kind, out=out)


def dequantise(weight: CodedWeight, dtype: torch.dtype) -> Tensor:
    """`[columns, depth]`, in the order of the codes, rounded once. Its memory is torch's, which hands it to the next
    weight when this one has been multiplied, inside of a graph, too."""
    out = torch.empty(weight.columns, weight.depth, dtype=dtype, device=weight.codes.device)
    if weight.scales.dtype is not torch.float32:  # those of experts may be shorter
        weight = replace(weight, scales=weight.scales.float())
    cuda.run("dequantise", weight.codes.device, DTYPES[dtype], matrix_of(weight), rows_at(out))
    return out


def launch(p: Product[CodedWeight], out: Tensor, activation: int | None = None) -> bool:
    """Launches one of our kernels for all of this, if the choice is one; returns whether it did."""
    x, gated = p.x, activation is not None
    chosen = _choose(p, out, gated)
    if chosen is None or chosen.kernel is CodedKernel.MATRIX:
        return False
    operands: tuple[Any, ...] = (
        DTYPES[x.dtype], rows_at(x), matrix_of(p.weight), address(p.bias), rows_at(p.residual), rows_at(out), len(x),
        (gated, activation or 0), norm_at(p.norm),
    )  # fmt: skip
    if chosen.kernel is CodedKernel.FEW:
        return cuda.launched("coded_few", x.device, *operands)
    if chosen.kernel is CodedKernel.WIDE:
        meetings, tile = shared_depth.NONE, (chosen.consumers, chosen.tokens, chosen.shares)
        if chosen.shares:
            meetings, _parts = shared_depth.room(p, chosen.shares, chosen.consumers, chosen.tokens)
        return cuda.launched("coded_wide", x.device, *operands, meetings, tile)
    return cuda.launched("coded_tiles", x.device, *operands, (chosen.tokens, chosen.cluster))


def _choose(p: Product[CodedWeight], out: Tensor, gated: bool) -> CodedLaunch | None:
    x, weight, norm = p.x, p.weight, p.norm
    if x.dtype not in cuda.HALF or (norm is not None and weight.order is not None):
        return None
    if address(None if norm is None else norm.weight) % 16 or not _in_eights(x):
        return None
    in_eights = _in_eights(out) and (p.residual is None or _in_eights(p.residual))
    ending = Ending.PLAIN if not gated else Ending.GATE if p.bias is None else Ending.BIASED_GATE
    return coded_choice.choose_coded(
        len(x), weight.columns, weight.depth, weight.bricks, ending, cuda.chip(x.device), norm is not None, p.uniform,
        in_eights, p.counter is not None and len(p.counter) == COUNTERS,
    )  # fmt: skip


def _in_eights(rows: Tensor) -> bool:
    """True if each row begins at a multiple of 16 bytes."""
    return rows.data_ptr() % 16 == 0 and rows.stride(0) % 8 == 0


def _in_order(p: Product[CodedWeight]) -> Product[CodedWeight]:
    """The columns of x in the order of the codes that they meet."""
    return p if p.weight.order is None else p._replace(x=p.x.index_select(1, p.weight.order))


def matrix_of(weight: CodedWeight, columns: int | None = None) -> tuple[object, ...]:
    """The module's `CodedMatrix` as a tuple; with `columns` that of the first of several which lie one below the
    other."""
    scheme = weight.scheme
    return (
        int(scheme.codes), scheme.group, weight.codes.data_ptr(), weight.scales.data_ptr(), address(weight.zeros),
        columns or weight.columns, weight.depth,
    )  # fmt: skip
