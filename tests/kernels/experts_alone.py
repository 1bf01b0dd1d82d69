"""Every launch of mixtures of experts, for `every_kernel.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.experts import gpu
from octavo_kernels.operands import RmsNorm

HIDDEN, WIDTH, EXPERTS = 1096, 72, 20


def data(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape).to(dtype).cuda()


def experts() -> None:
    """Shared experts, padding and biases; rows of one expert, of several tiles, and of more than one list's word."""
    zeros = torch.zeros(gpu.COUNTERS, dtype=torch.int32).cuda()
    routing = ops.Routing(EXPERTS, 3, normalised=True)
    up, down = data(EXPERTS * 2 * WIDTH, HIDDEN), data(EXPERTS * HIDDEN, WIDTH)
    router, gate = data(EXPERTS, HIDDEN, dtype=torch.float32), data(1, HIDDEN, dtype=torch.float32)
    for rows in (1, 3, 40, 64, 65, 300, 1100):
        slots = torch.tensor([-(i % 5 == 4) for i in range(rows)], dtype=torch.int64).cuda()
        for uniform in (False, True):
            found = ops.route_rows(
                ops.RouterProduct(
                    data(rows, HIDDEN), router, routing, zeros, gate=gate, norm=RmsNorm(data(HIDDEN)), slots=slots,
                    uniform=uniform,
                )
            )  # fmt: skip
            inner = ops.experts_up(found.rows, ops.Experts(up, data(len(up)), uniform), found.taken, "silu")
            ops.experts_down(
                inner, ops.Experts(down, None, uniform), found.taken, shared=data(rows, HIDDEN), gates=found.gates,
                residual=data(rows, HIDDEN),
            )  # fmt: skip
