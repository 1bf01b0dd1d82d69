"""Attention of wide heads on a GPU: against float64, its bits under any cut where they are promised, in graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.attention.wide import WidePlan, takes_wide

from .wide_rows import LATENT, SCALE, VALUES, WideRows, wide_rows

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

KINDS = {
    "16 heads of a latent": (16, 1, True),
    "20 heads of a latent": (20, 1, True),
    "128 heads of a latent": (128, 1, True),
    "8 heads a KV head": (16, 2, False),
    "4 KV heads of 8": (32, 4, False),
}
LENGTHS = [(1, 300), (3, 70), (0, 20), (1, 1), (9, 9), (1, 0), (1, 64), (1, 3000), (150, 400), (5, 900)]


def attend(rows: WideRows, *, uniform: bool = False) -> Tensor:
    heads, latent = rows.queries.shape[1], rows.cache.shape[1] == 1
    kv_heads = rows.cache.shape[2]
    tables, contexts, starts = (t.cuda() for t in rows.sequences())
    plan = WidePlan(sequences=len(contexts), heads=heads, kv_heads=kv_heads, latent=latent, uniform=uniform)
    plan.update(contexts, starts)
    out = torch.full((*rows.queries.shape[:2], VALUES), float("nan"), dtype=rows.queries.dtype, device="cuda")
    operands = (rows.queries.cuda(), rows.cache.cuda(), tables, contexts, starts, out, SCALE)
    if latent:
        ops.latent_attention(*operands, block_size=rows.block_size, plan=plan)
    else:
        ops.paged_attention(*operands, block_size=rows.block_size, plan=plan)
    return out.cpu()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_reference(kind: str, dtype: torch.dtype) -> None:
    heads, kv_heads, latent = KINDS[kind]
    rows = wide_rows(LENGTHS, heads, kv_heads, latent=latent, dtype=dtype)
    rows.check(attend(rows))
    rows.check(attend(rows, uniform=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cells", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_caches_in_eight_bits(kind: str, cells: torch.dtype, dtype: torch.dtype) -> None:
    heads, kv_heads, latent = KINDS[kind]
    for block_size in (16, 32, 128):
        rows = wide_rows(LENGTHS, heads, kv_heads, latent=latent, dtype=dtype, block_size=block_size, cells=cells)
        first = attend(rows)
        rows.check(first)
        assert torch.equal(attend(rows), first)


@pytest.mark.parametrize("latent", [True, False])
def test_bits_in_eight_bits_are_a_rows_own_in_a_uniform_plan(latent: bool) -> None:
    rows = wide_rows(LENGTHS, 16, 1 if latent else 2, latent=latent, cells=torch.int8)
    whole = attend(rows, uniform=True)
    rows.check(whole)
    for number, first, last in ((1, 0, 2), (7, 0, 1), (8, 100, 101), (8, 101, 150)):
        begin = int(rows.query_start[number])
        alone = attend(rows.only(number, first, last), uniform=True)
        assert torch.equal(alone, whole[begin + first : begin + last])


@pytest.mark.parametrize("latent", [True, False])
def test_scores_that_rise(latent: bool) -> None:
    rows = wide_rows([(1, 4000), (2, 200), (100, 300)], 8, latent=latent, dtype=torch.float16, rising=True)
    rows.check(attend(rows), scaled=latent)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("latent", [True, False])
def test_blocks_of_any_size(latent: bool, block_size: int) -> None:
    rows = wide_rows([(1, 150), (2, 65), (1, 2000)], 8, latent=latent, block_size=block_size)
    rows.check(attend(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_the_same_run_after_run(kind: str) -> None:
    heads, kv_heads, latent = KINDS[kind]
    rows = wide_rows(LENGTHS, heads, kv_heads, latent=latent)
    first = attend(rows)
    assert all(torch.equal(attend(rows), first) for _ in range(5))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_a_row_are_its_own_in_a_uniform_plan(kind: str) -> None:
    heads, kv_heads, latent = KINDS[kind]
    rows = wide_rows(LENGTHS, heads, kv_heads, latent=latent)
    whole = attend(rows, uniform=True)
    for number, first, last in ((1, 0, 2), (4, 3, 4), (7, 0, 1), (8, 0, 100), (8, 100, 101), (8, 101, 150)):
        begin = int(rows.query_start[number])
        alone = attend(rows.only(number, first, last), uniform=True)
        assert torch.equal(alone, whole[begin + first : begin + last])


def test_many_sequences() -> None:
    lengths = [(1, 17 * n % 400) for n in range(300)]
    rows = wide_rows(lengths, 4, latent=False)
    rows.check(attend(rows))


def test_a_graph_is_replayed_for_other_lengths() -> None:
    rows = wide_rows([(1, 900), (1, 30)], 16)
    tables, contexts, starts = (t.cuda() for t in rows.sequences())
    plan = WidePlan(sequences=2, heads=16, kv_heads=1, latent=True)
    q, cache = rows.queries.cuda(), rows.cache.cuda()
    out = torch.empty(2, 16, VALUES, dtype=q.dtype, device="cuda")

    def step() -> None:
        plan.update(contexts, starts)
        ops.latent_attention(q, cache, tables, contexts, starts, out, SCALE, plan=plan)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for lengths in ((900, 30), (100, 29), (640, 1)):
        contexts.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        found = out.clone()
        step()
        assert torch.equal(found, out)
    assert not torch.equal(out[0], out[1])


def test_a_plan_is_for_its_heads_alone() -> None:
    plan = WidePlan(sequences=1, heads=16, kv_heads=1, latent=True)
    rows = wide_rows([(1, 20)], 8)
    tables, contexts, starts = (t.cuda() for t in rows.sequences())
    with pytest.raises(ValueError, match="the plan was made for 1"):
        plan.update(contexts.repeat(2), starts)
    plan.update(contexts, starts)
    out = torch.empty(1, 8, VALUES, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(ValueError, match=r"\(16, 1, True\), not \(8, 1, True\)"):
        ops.latent_attention(rows.queries.cuda(), rows.cache.cuda(), tables, contexts, starts, out, SCALE, plan=plan)


def test_which_heads_are_wide() -> None:
    device, half = torch.device("cuda", 0), torch.bfloat16
    assert takes_wide(device, half, half, LATENT, VALUES)
    assert takes_wide(device, half, half, 512)
    assert not takes_wide(device, half, half, 576)
    assert takes_wide(device, half, torch.int8, 512)
    assert takes_wide(device, half, torch.float8_e4m3fn, LATENT, VALUES)
    assert not takes_wide(device, torch.float32, torch.float32, 512)
