"""Prompts of latent attention in the expanded form, beside the absorbed one: from queries to values, in one layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from kernel_rows.measuring import MATMUL, Row, measure_by_turns, row
from octavo_kernels import ops
from octavo_kernels.attention.wide import WidePlan
from octavo_worker.model.config import LatentLayer
from octavo_worker.model.expansion import Expansion, ExpansionRoom

BLOCK = 16
LAYERS = {
    "GLM-4.7-Flash": LatentLayer(0.0625, "rope", heads=20, rank=512, plain=192, rotated=64, value_dim=256),
    "DeepSeek-V3": LatentLayer(0.07, "rope", heads=128, rank=512, plain=128, rotated=64, value_dim=128),
}
SIZES = [
    (512, 512),
    (1024, 1024),
    (2048, 2048),
    (8192, 8192),
    (512, 32_768),
    (1024, 32_768),
    (2048, 32_768),
    (8192, 32_768),
]
"""Queries, and the tokens at whose end they are."""


def expanded(name: str, queries: int, context: int) -> Row:
    """One prompt. The floor is that of the products of pairs of a query and a key, as wide as the model's."""
    c, dtype = LAYERS[name], torch.bfloat16
    count = -(-context // BLOCK)
    cache = torch.empty((count + 1, 1, 1, BLOCK * c.width), dtype=dtype, device="cuda").normal_()
    tables = (torch.randperm(count, device="cuda").int() + 1)[None]
    contexts = torch.tensor([context], dtype=torch.int32, device="cuda")
    starts = torch.tensor([0, queries], dtype=torch.int32, device="cuda")
    matrices = (
        torch.randn(c.heads * c.rank, c.plain, dtype=dtype, device="cuda") / c.rank**0.5,
        torch.randn(c.heads * c.value_dim, c.rank, dtype=dtype, device="cuda") / c.rank**0.5,
    )
    to_latent, to_values = (each.view(c.heads, -1, each.shape[1]) for each in matrices)
    q = torch.randn(queries, c.heads, c.plain + c.rotated, dtype=dtype, device="cuda")
    out = torch.empty(queries, c.heads, c.value_dim, dtype=dtype, device="cuda")
    room = ExpansionRoom(c, dtype, q.device, BLOCK, context + queries)
    room.prices = replace(room.prices, absorbed_pair=1e6)
    step = Expansion.of(room, (tables, contexts, starts), np.array([queries]), np.array([context]), 0)
    assert step is not None
    plan = WidePlan(sequences=1, heads=c.heads, kv_heads=1, latent=True)
    plan.update(contexts, starts)

    def absorbed() -> None:
        met, read = (q.new_empty(queries, c.heads, width) for width in (c.width, c.rank))
        torch.bmm(q[..., : c.plain].transpose(0, 1), to_latent.transpose(1, 2), out=met[..., : c.rank].transpose(0, 1))
        met[..., c.rank :] = q[..., c.plain :]
        ops.latent_attention(met, cache, tables, contexts, starts, read, c.scale, BLOCK, plan)
        torch.bmm(read.transpose(0, 1), to_values.transpose(1, 2), out=out.transpose(0, 1))

    seconds = measure_by_turns(
        {"absorbed": [absorbed], "expanded": [lambda: step.attend(cache, matrices, q, q[..., c.plain :], out)]}, 7
    )
    pairs = queries * context - queries * (queries - 1) / 2
    floor = 2 * c.heads * (c.plain + c.rotated + c.value_dim) * pairs / MATMUL
    peer = ("absorbed", seconds["absorbed"])
    return row("expanded prompt", f"{name} {queries} of {context}", seconds["expanded"], floor, peer)


def expanded_rows() -> list[Row]:
    return [expanded(name, *sizes) for name in LAYERS for sizes in SIZES]
