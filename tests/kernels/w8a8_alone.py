"""Every launch of products of codes with codes, for `every_kernel.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from octavo_kernels import cuda, ops
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products import choice, w8a8
from octavo_kernels.products.choice import W8A8Kernel, W8A8Launch
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import DTYPES, Activations, Codes, QuantisedWeight, Scheme

SCHEMES = (  # group 0: all of the depth
    Scheme(Codes.INT8, 0, Activations.INT8),
    Scheme(Codes.FP8, 0, Activations.FP8),
    Scheme(Codes.FP8, 128, Activations.FP8, 128),
)


def data(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape).to(dtype).cuda()


def every_launch() -> list[W8A8Launch]:
    kinds = [W8A8Launch(W8A8Kernel.PLAIN)]
    if cuda.chip(torch.device("cuda", 0)).major >= choice.OLDEST:
        kinds.append(W8A8Launch(W8A8Kernel.ROW))
    if cuda.runs_hopper_code(torch.device("cuda")):
        kinds += [W8A8Launch(W8A8Kernel.WIDE, n, tokens, 64 * n - 16) for n, tokens in choice.W8A8_TILES]
    return kinds


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


def w8a8_products(
    kinds: Sequence[W8A8Launch] | None = None,
    most: int = 150,
    shapes: Sequence[tuple[int, int]] = ((272, 656), (16, 16)),
) -> None:
    """In every kernel and tile, with at most so many rows, with a gate and without one."""
    chosen = choice.choose_w8a8
    for kind, scheme, (columns, depth) in product(every_launch() if kinds is None else kinds, SCHEMES, shapes):
        choice.choose_w8a8 = lambda *_, kind=kind: kind
        rows, group = 1 if kind.kernel is W8A8Kernel.ROW else min(kind.tokens or 300, most), scheme.group or depth
        stored = torch.randint(-60, 60, (columns, depth), dtype=torch.int8).view(DTYPES[scheme.codes])
        scales = data(-(-depth // group), columns, dtype=torch.float32)
        weight = ops.pack(QuantisedWeight(scheme._replace(group=group), stored.cuda(), scales))
        x, bias, norm = data(rows, depth), data(columns), RmsNorm(data(depth))
        everything = Product(x, weight, bias, residual=data(rows, columns), norm=norm)
        assert w8a8.launch(everything, empty(rows, columns))
        assert w8a8.launch(Product(x, weight), empty(rows, columns // 2), 0)
    choice.choose_w8a8 = chosen
