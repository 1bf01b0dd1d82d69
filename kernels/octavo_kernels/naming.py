"""Which kernel computes a product here, in words for people."""

from __future__ import annotations

from typing import NamedTuple

import torch

from octavo_kernels import _cpu, choice, cuda
from octavo_kernels.choice import Ending, Kernel
from octavo_kernels.weights import Scheme

LIBRARIES = {Kernel.CUBLAS: "cuBLAS", Kernel.CUBLASLT: "cuBLASLt"}


class Way(NamedTuple):
    """How a product is computed. `dequantises`: a copy of the weight in the type of x is made each time, which is
    slower than a weight that is stored so."""

    kernel: str
    dequantises: bool


def way_of(
    columns: int, depth: int, dtype: torch.dtype, device: torch.device, scheme: Scheme | None, *, gated: bool = False
) -> Way:
    """Of one row of `dtype` with `weight[columns, depth]`: a step of a single sequence. `scheme` None is a weight in
    the type of x. With `gated` the activation of a gate follows."""
    if scheme is None:
        return Way(_dense(columns, depth, dtype, device, gated), False)
    return Way(_dense(columns, depth, dtype, device, False), True)


def _dense(columns: int, depth: int, dtype: torch.dtype, device: torch.device, gated: bool) -> str:
    if device.type == "cpu":
        return str(_cpu.level())
    form, chip = cuda.FORMS[dtype], cuda.chip(device)
    launch = choice.choose(1, columns, depth, form, Ending.GATE if gated else Ending.PLAIN, chip)
    kernel = (launch or choice.library(1, columns, depth, form)).kernel
    return LIBRARIES.get(kernel, kernel.name.lower())
