"""Every launch of products with weights of codes, for `every_kernel.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, product

import torch
from coded_weights import FORMS, random_weight
from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products import coded_choice, coded_cuda
from octavo_kernels.products.coded_choice import WIDE_CLUSTERS, WIDE_TILES, CodedKernel, CodedLaunch
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import Codes

Form = tuple[Codes, int]
WIDE = [CodedLaunch(CodedKernel.WIDE, t, c, n) for (n, t), c in product(WIDE_TILES, WIDE_CLUSTERS)]


def data(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16().cuda()


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


def coded(forms: Sequence[Form] = FORMS, counts: Sequence[int] = (1, 3, 9, 20, 50, 130), depth: int = 1320) -> None:
    """Every form that has kernels of its own, few rows, tiles of every size, whole matrices."""
    for kind, group in forms:
        for zeros in {False, kind in (Codes.INT4, Codes.INT8)}:
            weight = coded_cuda.pack(random_weight(kind, group, 96, depth, zeros=zeros, device="cuda"))
            coded_cuda.dequantise(weight, torch.bfloat16)
            for rows in counts:
                x, bias, residual = data(rows, depth), data(96), data(rows, 96)
                launches = [(residual, None)] if rows > 1 else [(residual, None), (None, RmsNorm(data(depth)))]
                for more, norm in launches:
                    coded_cuda.launch(Product(x, weight, bias, residual=more, norm=norm), empty(rows, 96))
                coded_cuda.launch(Product(x, weight), empty(rows, 48), 0)
                if cuda.runs_hopper_code(x.device):
                    coded_cuda.launch(Product(x, weight, uniform=True), empty(rows, 96))


def coded_wide(
    forms: Sequence[Form] = FORMS, launches: Sequence[CodedLaunch] = WIDE, columns: int = 416, depth: int = 456
) -> None:
    """Wide tiles, each with another form: several for a block, or with a depth that pairs share."""
    chosen = coded_choice.choose_coded
    for (kind, group), launch in zip(cycle(forms), launches if cuda.runs_hopper_code(torch.device("cuda")) else ()):
        coded_choice.choose_coded = lambda *_, launch=launch: launch
        weight = coded_cuda.pack(random_weight(kind, group, columns, depth, kind is Codes.INT4, device="cuda"))
        for rows in (33, launch.tokens + 20):
            x, residual = data(rows, depth), data(rows, columns)
            assert coded_cuda.launch(Product(x, weight, data(columns), residual=residual), residual)
            assert coded_cuda.launch(Product(x, weight), empty(rows, columns // 2), 0)
    coded_choice.choose_coded = chosen
