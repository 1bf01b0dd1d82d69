"""The kernels that join GPUs, launched by one rank that has no others: a piece of every_kernel.py."""

from __future__ import annotations

import torch
from exchange_rank import drawn

from octavo_kernels.exchange.gpus import Exchange, Way
from octavo_kernels.operands import RmsNorm


def exchange() -> None:
    alone = Exchange(0, 1, torch.device("cuda", torch.cuda.current_device()), 4 << 20)
    alone.connect([alone.handle])
    alone.check()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for rows, columns in ((1, 64), (3, 4104), (20, 8192)):
            for way in Way:
                addend = alone.addend(rows, columns, dtype)
                addend.copy_(drawn(rows, rows, columns, dtype=dtype))
                out, normed = torch.empty_like(addend), torch.empty_like(addend)
                norm = RmsNorm(drawn(columns, columns, dtype=dtype))
                alone.add(addend, out, way=way)
                assert torch.equal(out, addend)
                alone.add(addend, out, out, norm, normed, way)
                assert torch.equal(out, addend + addend)
    alone.close()
