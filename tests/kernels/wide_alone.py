"""Every launch of attention of wide heads, for `every_kernel.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from wide_rows import LATENT, SCALE, VALUES, wide_rows

from octavo_kernels import cuda, ops
from octavo_kernels.attention.wide import WidePlan
from octavo_kernels.operands import RmsNorm
from octavo_kernels.ops import HeadProduct

LENGTHS = ((1, 300), (0, 20), (9, 9), (40, 90))
"""Queries, and the tokens at whose end they are."""


def data(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape).to(dtype).cuda()


def wide_heads(lengths: Sequence[tuple[int, int]] = LENGTHS, heads: int = 20) -> None:
    """Latent rows, and heads of 512 with keys and values, in both types, with plans of both kinds."""
    keep()
    if not cuda.runs_hopper_code(torch.device("cuda")):
        return
    for dtype in (torch.bfloat16, torch.float16):
        for latent, kv_heads, uniform in ((True, 1, False), (True, 1, True), (False, 2, False)):
            attend(list(lengths), heads, kv_heads, latent, uniform, dtype)


def keep() -> None:
    """A step's rows into the cache, one of them padding, and blocks of them read back."""
    cache, out = torch.zeros(3, 1, 1, 16 * LATENT, dtype=torch.bfloat16, device="cuda"), data(4, 3, LATENT)
    products = HeadProduct(data(4, 3, 192), data(3 * VALUES, 192), out[..., :VALUES])
    ops.by_head(products)
    ops.keep_latent(
        data(4, 3, 64), data(4, LATENT), RmsNorm(data(VALUES)), out, cache, torch.tensor([16, 17, -1, 47]).cuda(),
        torch.tensor([0, 1, 2, 9]).cuda(), data(10, 64, dtype=torch.float32), beside=products,
    )  # fmt: skip
    ops.read_latent(cache, torch.tensor([2, 1], dtype=torch.int32).cuda(), data(32, LATENT), VALUES)


def attend(
    lengths: list[tuple[int, int]], heads: int, kv_heads: int, latent: bool, uniform: bool, dtype: torch.dtype
) -> None:
    rows = wide_rows(lengths, heads, kv_heads, latent=latent, dtype=dtype)
    tables, contexts, starts = (each.cuda() for each in rows.sequences())
    plan = WidePlan(sequences=len(contexts), heads=heads, kv_heads=kv_heads, latent=latent, uniform=uniform)
    plan.update(contexts, starts)
    out = torch.empty((*rows.queries.shape[:2], VALUES), dtype=dtype, device="cuda")
    operands = (rows.queries.cuda(), rows.cache.cuda(), tables, contexts, starts, out, SCALE)
    if latent:
        ops.latent_attention(*operands, block_size=rows.block_size, plan=plan)
    else:
        ops.paged_attention(*operands, block_size=rows.block_size, plan=plan)
