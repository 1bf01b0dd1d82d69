"""Prompts of latent attention in the expanded form on a GPU, in shapes of models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo_kernels import ops, reference
from octavo_kernels.attention.latent import latent_cells
from octavo_kernels.operands import RmsNorm
from octavo_worker.model.config import LatentLayer
from octavo_worker.model.expansion import Expansion, ExpansionRoom

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

GLM = LatentLayer(0.0625, "rope", heads=20, rank=512, plain=192, rotated=64, value_dim=256)
DEEPSEEK = LatentLayer(0.07, "rope", heads=16, rank=512, plain=128, rotated=64, value_dim=128)
MINICPM3 = LatentLayer(0.1, "rope", heads=40, rank=256, plain=64, rotated=32, value_dim=64)
LENGTHS = [(1, 300), (1500, 1500), (1024, 2048), (90, 100)]
BLOCK = 16


def filled(c: LatentLayer, dtype: torch.dtype, cells: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """A cache whose blocks lie in any order, NaN where nothing was written, and the block tables."""
    counts = [-(-context // BLOCK) for _, context in LENGTHS]
    count = latent_cells(c.width, c.rank, BLOCK, dtype, cells or dtype)
    cache = torch.full((sum(counts) + 1, count * (cells or dtype).itemsize), 255, dtype=torch.uint8, device="cuda")
    layer = cache.view(cells or dtype)[:, None, None]
    tables = torch.zeros(len(LENGTHS), max(counts), dtype=torch.int32)
    still = torch.cat((torch.ones(1, c.rotated // 2), torch.zeros(1, c.rotated // 2)), dim=1).cuda()
    norm = RmsNorm(torch.ones(c.rank, dtype=dtype, device="cuda"))
    order = torch.randperm(sum(counts)).int() + 1
    for table, (_, context), blocks in zip(tables, LENGTHS, order.split(counts), strict=True):
        table[: len(blocks)] = blocks
        at = torch.arange(context)
        slots = (blocks[at // BLOCK].long() * BLOCK + at % BLOCK).cuda()
        kept = torch.randn(context, c.width, dtype=dtype, device="cuda")
        q = torch.empty(context, 1, c.width, dtype=dtype, device="cuda")
        ops.keep_latent(q[..., c.rank :].clone(), kept, norm, q, layer, slots, torch.zeros_like(slots), still, BLOCK)
    return layer, tables.cuda()


@pytest.mark.parametrize(("layer", "cells"), [(GLM, None), (DEEPSEEK, None), (MINICPM3, None), (GLM, torch.int8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_is_that_over_each_heads_own_keys(
    layer: LatentLayer, cells: torch.dtype | None, dtype: torch.dtype
) -> None:
    """With all heads at once, and with some one after the other, for which cuBLAS may compute products otherwise."""
    torch.manual_seed(3)
    c = layer
    cache, tables = filled(c, dtype, cells)
    queries, contexts = np.array(LENGTHS, np.int32).T
    starts = torch.tensor([0, *np.cumsum(queries)], dtype=torch.int32).cuda()
    to_latent = (torch.randn(c.heads * c.rank, c.plain) / c.rank**0.5).to(dtype).cuda()
    to_values = (torch.randn(c.heads * c.value_dim, c.rank) / c.rank**0.5).to(dtype).cuda()
    q = torch.randn(int(queries.sum()), c.heads, c.plain + c.rotated, dtype=dtype, device="cuda")
    room, found = ExpansionRoom(c, dtype, q.device, BLOCK, 4000), []
    room.prices = replace(room.prices, absorbed_pair=1e6, key=0.0)
    for at_once in (c.heads, c.heads // 4):
        room.heads_at_once = lambda contexts, at_once=at_once: at_once  # type: ignore[assignment,misc]
        step = Expansion.of(room, (tables, torch.from_numpy(contexts.copy()).cuda(), starts), queries, contexts, 1)
        assert step is not None
        assert (step.sequences, step.heads) == (1, at_once)
        found.append(torch.full((len(q) - 1, c.heads, c.value_dim), float("nan"), dtype=dtype, device="cuda"))
        step.attend(cache, (to_latent, to_values), q[1:], q[1:, :, c.plain :], found[-1])
    torch.testing.assert_close(*found, atol=2e-2, rtol=2e-2)
    for number in range(1, len(LENGTHS)):
        blocks = tables[number, : -(-int(contexts[number]) // BLOCK)]
        rows = torch.empty(len(blocks) * BLOCK, c.width, dtype=dtype, device="cuda")
        rows = ops.read_latent(cache, blocks, rows, c.rank, BLOCK)[: contexts[number]].double()
        own = slice(int(starts[number]), int(starts[number + 1]))
        for head in (0, c.heads // 2, c.heads - 1):
            keys = rows[:, : c.rank] @ to_latent.view(c.heads, c.rank, c.plain)[head].double()
            keys = torch.cat((keys, rows[:, c.rank :]), dim=1)
            values = rows[:, : c.rank] @ to_values.view(c.heads, c.value_dim, c.rank)[head].double().T
            padded = torch.nn.functional.pad(values, (0, keys.shape[1] - c.value_dim))
            expected = reference.attention(q[own, head : head + 1].double(), keys[:, None], padded[:, None], c.scale)
            got = found[0][own.start - 1 : own.stop - 1, head : head + 1].double()
            torch.testing.assert_close(got, expected[..., : c.value_dim], atol=2e-2, rtol=2e-2)
