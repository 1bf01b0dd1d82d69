"""Which kernel computes a product here, in words for people."""

from __future__ import annotations

from typing import NamedTuple

import torch

from octavo_kernels import _cpu, cuda
from octavo_kernels.products import choice, coded_cuda, dense_cuda, w8a8
from octavo_kernels.products.choice import Ending, Kernel
from octavo_kernels.products.coded import bricks_of
from octavo_kernels.products.coded_choice import CodedKernel, choose_coded
from octavo_kernels.products.weights import Scheme

LIBRARIES = {Kernel.CUBLAS: "cuBLAS", Kernel.CUBLASLT: "cuBLASLt"}
AMD_LIBRARIES = dict.fromkeys(LIBRARIES, "hipBLAS")


class Way(NamedTuple):
    """How a product is computed. `dequantises`: a copy of the weight in the type of x is made each time, which is
    slower than a weight that is stored so."""

    kernel: str
    dequantises: bool


def way_of(
    columns: int, depth: int, dtype: torch.dtype, device: torch.device, scheme: Scheme | None, *, gated: bool = False
) -> Way:
    """Name of the kernel for one row of `dtype` with `weight[columns, depth]`: a step of a single sequence. `scheme`
    None is a weight in the type of x. With `gated` the activation of a gate follows."""
    if scheme is None or device.type == "cpu":
        return Way(_dense(columns, depth, dtype, device, gated), False)
    kernel = _coded(columns, depth, device, scheme, gated) or _w8a8(columns, depth, device, scheme)
    return Way(kernel or _dense(columns, depth, dtype, device, False), kernel is None)


def _coded(columns: int, depth: int, device: torch.device, scheme: Scheme, gated: bool) -> str | None:
    if not coded_cuda.knows(scheme, depth, device):
        return None
    bricks, ending = bricks_of(scheme, depth), Ending.GATE if gated else Ending.PLAIN
    assert bricks is not None
    launch = choose_coded(1, columns, depth, bricks, ending, cuda.chip(device))
    return None if launch is None or launch.kernel is CodedKernel.MATRIX else f"coded {launch.kernel.name.lower()}"


def _w8a8(columns: int, depth: int, device: torch.device, scheme: Scheme) -> str | None:
    form = w8a8.form_of_scheme(scheme, depth)
    launch = form and choice.choose_w8a8(1, columns, depth, form, cuda.chip(device))
    return f"w8a8 {launch.kernel.name.lower()}" if launch else None


def _dense(columns: int, depth: int, dtype: torch.dtype, device: torch.device, gated: bool) -> str:
    if device.type == "cpu":
        return str(_cpu.level())
    form, chip = dense_cuda.FORMS[dtype], cuda.chip(device)
    launch = choice.choose(1, columns, depth, form, Ending.GATE if gated else Ending.PLAIN, chip)
    kernel = (launch or choice.library(1, columns, depth, form)).kernel
    libraries = LIBRARIES if torch.version.hip is None else AMD_LIBRARIES
    return libraries.get(kernel, kernel.name.lower())
