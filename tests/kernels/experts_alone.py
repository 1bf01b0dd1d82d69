"""Every launch of mixtures of experts, for `every_kernel.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from coded_weights import FORMS, random_weight
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.experts import gpu
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products.coded import CodedWeight
from octavo_kernels.products.weights import Codes

HIDDEN, WIDTH, EXPERTS = 1096, 72, 20


def data(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape).to(dtype).cuda()


def experts(counts: Sequence[int] = (1, 3, 40, 64, 65, 300, 1100)) -> None:
    """Shared experts, padding and biases; rows of one expert, of several tiles, and of more than one list's word. With
    a gate and without one."""
    zeros = torch.zeros(gpu.COUNTERS, dtype=torch.int32).cuda()
    routing = ops.Routing(EXPERTS, 3, normalised=True)
    up, down = data(EXPERTS * 2 * WIDTH, HIDDEN), data(EXPERTS * HIDDEN, WIDTH)
    router, gate = data(EXPERTS, HIDDEN, dtype=torch.float32), data(1, HIDDEN, dtype=torch.float32)
    for rows in counts:
        slots = torch.tensor([-(i % 5 == 4) for i in range(rows)], dtype=torch.int64).cuda()
        for uniform in (False, True):
            found = ops.route_rows(
                ops.RouterProduct(
                    data(rows, HIDDEN), router, routing, zeros, gate=gate, norm=RmsNorm(data(HIDDEN)), slots=slots,
                    uniform=uniform,
                )
            )  # fmt: skip
            first = ops.Experts(up, data(len(up)))
            inner = ops.experts_up(found.rows, first, found.taken, "silu")
            ops.experts_up(found.rows, first, found.taken, "relu2")
            ops.listed(found.taken)
            ops.experts_down(
                inner, ops.Experts(down), found.taken, shared=data(rows, HIDDEN), gates=found.gates,
                residual=data(rows, HIDDEN),
            )  # fmt: skip
            if isinstance(found.taken, ops.RouterLogits):
                shared_experts(found, first, ops.Experts(down))


def shared_experts(found: ops.Routed, up: ops.Experts, down: ops.Experts) -> None:
    """Products of a shared expert within the launches of a few rows, wider than the experts and narrower."""
    for width, (kind, halves) in product((200, 40), (("silu", 2), ("relu2", 1))):
        room = data(len(found.rows), width)
        first, second = (ops.Experts(data(*shape)) for shape in ((halves * width, HIDDEN), (HIDDEN, width)))
        inner = ops.experts_up(found.rows, up, found.taken, kind, shared=ops.SharedProduct(first, room))
        within = ops.SharedProduct(second, room)
        ops.experts_down(inner[:, :WIDTH], down, found.taken, shared=within, gates=found.gates, factor=0.22)


def coded_experts(forms: Sequence[tuple[Codes, int]] = FORMS, counts: Sequence[int] = (1, 3, 40, 400)) -> None:
    """Every form of codes, with zero points where there are any."""
    zeros = torch.zeros(gpu.COUNTERS, dtype=torch.int32).cuda()
    routing, experts = ops.Routing(8, 2, normalised=True), 8
    router = data(experts, 272, dtype=torch.float32)
    for (kind, group), rows in product(forms, counts):
        asymmetric = kind in (Codes.INT4, Codes.INT8)
        up, down = (
            ops.pack(random_weight(kind, group, experts * columns, depth, zeros=asymmetric, device="cuda"))
            for columns, depth in ((2 * 144, 272), (272, 144))
        )
        assert isinstance(up, CodedWeight)
        assert isinstance(down, CodedWeight)
        found = ops.route_rows(ops.RouterProduct(data(rows, 272), router, routing, zeros))
        first = ops.Experts(up, data(up.columns))
        inner = ops.experts_up(found.rows, first, found.taken, "silu")
        ops.experts_up(found.rows, first, found.taken, "relu2")
        ops.experts_down(inner, ops.Experts(down, data(down.columns)), found.taken, residual=data(rows, 272))
