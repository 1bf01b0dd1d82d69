"""Launches of products with weights in the type of the rows, on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.operands import DTYPES, address, norm_at, rows_at
from octavo_kernels.products import choice
from octavo_kernels.products.choice import Alignment, Ending, Form, Kernel, Launch
from octavo_kernels.products.product import Product

FORMS = {torch.float32: Form.DENSE_32, torch.bfloat16: Form.DENSE_16, torch.float16: Form.DENSE_16}


def linear(p: Product[Tensor], out: Tensor) -> None:
    """By our kernel where it is faster, else by torch's libraries, whose algorithm depends on the number of rows."""
    if not launch_linear(p, out):
        library_linear(p, out)


def library_linear(p: Product[Tensor], out: Tensor) -> None:
    """By torch's libraries, which read a weight no sooner than the kernel that writes it has ended. Without a norm."""
    x, weight, bias, residual = p.x, p.weight, p.bias, p.residual
    library = choice.library(len(x), weight.shape[0], weight.shape[1], FORMS[x.dtype]).kernel
    with _cublaslt() if library is Kernel.CUBLASLT and torch.version.hip is None else nullcontext():
        if residual is not None and bias is not None:
            torch.addmm(residual, x, weight.t(), alpha=p.factor, out=out).add_(bias, alpha=p.factor)
        elif (addend := residual if bias is None else bias) is not None:
            torch.addmm(addend, x, weight.t(), alpha=p.factor, out=out)
        else:
            torch.mm(x, weight.t(), out=out)


def launch_linear(p: Product[Tensor], out: Tensor, activation: int | None = None) -> bool:
    """Launches our kernel for all of this where that is faster; returns whether it did."""
    ending = Ending.PLAIN if activation is None else Ending.GATE if p.bias is None else Ending.BIASED_GATE
    launch = _choose(p, ending)
    if launch is None or launch.kernel < 0:
        return False
    operands = _operands(p, out)
    alignment = _alignment(operands, address(None if p.norm is None else p.norm.weight))
    if alignment != Alignment.ALL:
        launch = _choose(p, ending, alignment)
        if launch is None or launch.kernel < 0:
            return False
    gate = (activation is not None, activation or 0)
    return cuda.launched("linear", p.x.device, *operands, gate, norm_at(p.norm), address(p.counter), launch)


def linear_uniform(p: Product[Tensor], out: Tensor) -> None:
    """By the kernel whose rows do not depend on how many there are. Raises TypeError or ValueError for what it does not
    take, RuntimeError on chips that it is not for."""
    x, weight = p.x, p.weight
    if not cuda.runs_hopper_code(x.device):
        raise RuntimeError(f"uniform products need a Hopper GPU and kernels built for it, not {x.device}")
    if x.dtype not in cuda.HALF:
        raise TypeError(f"x must be bfloat16 or float16 for a uniform product, not {x.dtype}")
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.data_ptr() % 16 or tensor.stride(0) % 8:
            raise ValueError(f"{name} must have rows at multiples of 16 bytes; its strides are {tensor.stride()}")
    if len(x):
        launch = choice.choose_uniform(len(x), len(weight), cuda.chip(x.device))
        cuda.run("linear", x.device, *_operands(p, out), (False, 0), norm_at(None), 0, launch)


def _choose(p: Product[Tensor], ending: Ending, alignment: Alignment = Alignment.ALL) -> Launch | None:
    if cuda.compiled is None:
        return None
    rows, depth = p.x.shape
    form, normed = FORMS[p.x.dtype], p.norm is not None
    return choice.choose(rows, p.weight.shape[0], depth, form, ending, cuda.chip(p.x.device), normed, alignment)


def _operands(p: Product[Tensor], out: Tensor) -> tuple[Any, ...]:
    """The first arguments of the module's `linear`."""
    x, weight = p.x, p.weight
    rows, depth = x.shape
    return (
        DTYPES[x.dtype], (x.data_ptr(), x.stride(0)), (weight.data_ptr(), weight.stride(0)), address(p.bias),
        rows_at(p.residual), p.factor, (out.data_ptr(), out.stride(0)), rows, weight.shape[0], depth,
    )  # fmt: skip


def _alignment(operands: tuple[Any, ...], norm: int) -> Alignment:
    _, (x, x_stride), (weight, weight_stride), bias, (residual, residual_stride), _, (out, out_stride), *_ = operands
    if (x | weight | norm) % 16 or weight_stride % 8:
        return Alignment.NONE
    rest = (bias | residual | out) % 16 or (x_stride | residual_stride | out_stride) % 8
    return Alignment.INPUTS if rest else Alignment.ALL


@contextmanager
def _cublaslt() -> Iterator[None]:
    """Torch's products by this library. Torch's choice is a variable of the process: a graph that is captured keeps the
    kernels that were chosen."""
    library = torch.backends.cuda.preferred_blas_library
    before = library()
    library("cublaslt")
    try:
        yield
    finally:
        library(before)
