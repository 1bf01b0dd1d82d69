"""Latent rows of any width on a GPU: written and read as on the CPU."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels import cuda, ops, reference
from octavo_kernels.attention.plan import AttentionPlan
from octavo_kernels.operands import RmsNorm
from octavo_kernels.ops import HeadProduct

from .test_latent import CELLS, LENGTHS, ROTARY, TOLERANCE, Rows, check, empty

pytestmark = pytest.mark.gpu

SIZES = [(5, 40, 32), (3, 64, 64), (20, 288, 256), (16, 576, 512), (4, 24, 16)]


def written(lengths: list[tuple[int, int]], heads: int, width: int, dtype: torch.dtype, block_size: int = 16) -> Rows:
    """Queries and keys as the CPU norms and rotates them, which is checked; the cache is the GPU's."""
    generator = torch.Generator().manual_seed(heads + width)
    needed = [-(-context // block_size) for _, context in lengths]
    cache = torch.full((sum(needed) + 2, 2, block_size * width), float("nan"), dtype=dtype, device="cuda")[:, 1:, None]
    order = torch.randperm(sum(needed), generator=generator) + 1
    tables = torch.full((len(lengths), max(needed)), 0, dtype=torch.int32)
    cos_sin = torch.randn(1000, ROTARY, generator=generator)
    norm = RmsNorm(torch.randn(width - ROTARY, generator=generator).to(dtype))
    queries, keys, start = [], [], 0
    for row, ((asked, context), count) in enumerate(zip(lengths, needed, strict=True)):
        blocks = order[start : start + count]
        tables[row, :count] = blocks
        start += count
        x = torch.randn(context, heads + 1, width, generator=generator).to(dtype)
        at = torch.arange(context)
        slots = blocks[at // block_size] * block_size + at % block_size
        q = x[:, :heads].clone().cuda()  # whose first columns stay
        there = RmsNorm(norm.weight.cuda(), norm.eps)
        places = (slots.cuda(), at.cuda(), cos_sin.cuda(), block_size)
        ops.keep_latent(q[..., -ROTARY:].clone(), x[:, heads].cuda(), there, q, cache, *places)
        wanted = x.float()
        wanted[..., -ROTARY:] = reference.rope(wanted[..., -ROTARY:], at, cos_sin)
        wanted[:, heads, :-ROTARY] = reference.rms_norm(x[:, heads, :-ROTARY].float(), norm.weight.float(), norm.eps)
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(q.cpu(), wanted[:, :heads].to(dtype), atol=tolerance, rtol=tolerance)
        queries.append(q.cpu()[context - asked :])
        keys.append(wanted[:, heads:].to(dtype))
    starts = torch.tensor([0, *(asked for asked, _ in lengths)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    lens = torch.tensor([context for _, context in lengths], dtype=torch.int32)
    return Rows(torch.cat(queries), cache, tables, lens, starts, keys, block_size)


class OnGpu(Rows):
    """Attention of the rows on the GPU."""

    uniform = False

    def attend(self, values: int, scale: float = 0.125) -> torch.Tensor:
        out = self.queries.new_full((*self.queries.shape[:2], values), float("nan"), device="cuda")
        tables, contexts, starts = (t.cuda() for t in (self.tables, self.context_lens, self.query_start))
        plan = None
        if self.uniform:
            tokens, heads, width = self.queries.shape
            plan = AttentionPlan(
                sequences=len(contexts), tokens=tokens, chunks=1000, heads=heads, kv_heads=1, head_dim=width,
                max_queries=tokens, uniform=True,
            )  # fmt: skip
            plan.update(contexts, starts)
        queries = self.queries.cuda()
        ops.latent_attention(queries, self.cache, tables, contexts, starts, out, scale, self.block_size, plan)
        return out.cpu()


def on_gpu(rows: Rows, *, uniform: bool = False) -> OnGpu:
    made = OnGpu(rows.queries, rows.cache, rows.tables, rows.context_lens, rows.query_start, rows.keys, rows.block_size)
    made.uniform = uniform
    return made


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("heads", "width", "values"), SIZES)
def test_values_are_the_first_of_the_keys(heads: int, width: int, values: int, dtype: torch.dtype) -> None:
    rows = written(LENGTHS, heads, width, dtype)
    check(on_gpu(rows), values)
    check(on_gpu(rows, uniform=True), values)


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [40, 64, 288, 576])
def test_rows_are_read_as_they_were_kept(width: int, dtype: torch.dtype, block_size: int) -> None:
    rows = written([(1, 70), (60, 90), (9, 9)], 2, width, dtype, block_size)
    for table, keys in zip(rows.tables, rows.keys, strict=True):
        count = -(-len(keys) // block_size)
        out = torch.full((count * block_size, width), float("nan"), dtype=dtype, device="cuda")
        ops.read_latent(rows.cache, table[:count].cuda(), out, width - ROTARY, block_size)
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(out[: len(keys)].cpu(), keys[:, 0], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cells", CELLS, ids=str)
@pytest.mark.parametrize("rank", [512, 24])
def test_what_is_kept_in_eight_bits_is_what_the_cpu_keeps(rank: int, cells: torch.dtype, dtype: torch.dtype) -> None:
    """Codes are equal but for one in a hundred, at most, on an edge: norms differ in their last place."""
    generator = torch.Generator().manual_seed(rank)
    width, tokens = rank + ROTARY, 40
    kept, cos_sin = (
        torch.randn(tokens, width, generator=generator).to(dtype),
        torch.randn(40, ROTARY, generator=generator),
    )
    norm = RmsNorm(torch.randn(rank, generator=generator).to(dtype))
    cache = empty(4, width, dtype, 16, cells).cuda()
    at, q = torch.arange(tokens).cuda(), torch.zeros(tokens, 1, width, dtype=dtype).cuda()
    there = RmsNorm(norm.weight.cuda(), norm.eps)
    ops.keep_latent(q[..., rank:].clone(), kept.cuda(), there, q, cache, at + 16, at, cos_sin.cuda())
    normed = reference.rms_norm(kept[:, :rank].float(), norm.weight.float(), norm.eps).to(dtype)
    codes, scales = reference.quantise(normed.float(), cells)
    turned = reference.rope(kept[:, None, rank:].float(), torch.arange(tokens), cos_sin)[:, 0].to(dtype)
    read = torch.full((48, width), float("nan"), dtype=dtype, device="cuda")
    ops.read_latent(cache, torch.tensor([1, 2, 3], dtype=torch.int32).cuda(), read, rank)
    off = 0
    for token in range(tokens):
        block, offset = cache[1 + token // 16].flatten().cpu().view(torch.uint8), token % 16
        row, scale, exact = (block[: 16 * rank], block[16 * rank : 16 * (rank + 4)], block[16 * (rank + 4) :])
        found = unswizzled(row.view(16, rank)[offset], offset)
        found = found.to(torch.int16) - 128 if cells is torch.int8 else found.view(cells).float()
        rounded = found.float() * scale.view(torch.float32)[offset]
        assert torch.equal(
            read[token].cpu(), torch.cat((rounded.to(dtype), exact.view(dtype).view(16, ROTARY)[offset]))
        )
        off += int((found != codes[token].to(found.dtype)).sum())
        torch.testing.assert_close(scale.view(torch.float32)[offset], scales[token, 0], rtol=1e-2, atol=0)
        torch.testing.assert_close(exact.view(dtype).view(16, ROTARY)[offset], turned[token], rtol=1e-2, atol=1e-2)
    assert off <= tokens * rank // 100


def unswizzled(row: torch.Tensor, token: int) -> torch.Tensor:
    """Codes of a token by column."""
    columns = torch.arange(len(row))
    if len(row) % 16:
        return row
    within, unit = columns % 16, columns // 16
    inside = within % 8 // 2 * 4 + within % 2 + within // 8 * 2
    return row[((unit & ~7) + ((unit ^ token) & 7)) * 16 + inside]


def test_bits_do_not_depend_on_how_a_prompt_is_cut() -> None:
    rows = on_gpu(written([(1, 70), (60, 90), (9, 9)], 4, 40, torch.bfloat16), uniform=True)
    whole = rows.attend(32)
    cut = Rows(
        rows.queries[1:41], rows.cache, rows.tables[1:2], torch.tensor([70], dtype=torch.int32),
        torch.tensor([0, 40], dtype=torch.int32), [], 16,
    )  # fmt: skip
    assert torch.equal(on_gpu(cut, uniform=True).attend(32), whole[1:41])


def head_products(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries of GLM-4.7-Flash before they meet latents, `[T, heads, 256]`, the matrices, and products in float64."""
    generator = torch.Generator().manual_seed(rows)
    q = torch.randn(rows, 20, 256, generator=generator).to(dtype).cuda()
    weight = torch.randn(20 * 512, 192, generator=generator).to(dtype).cuda()
    return q, weight, torch.einsum("thd,hcd->thc", q[..., :192].double(), weight.double().view(20, 512, 192))


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 32, 64, 65, 200])
def test_products_by_head(rows: int, dtype: torch.dtype, uniform: bool) -> None:
    if uniform and (dtype is torch.float32 or not cuda.runs_hopper_code(torch.device("cuda"))):
        pytest.skip("uniform products have 16 bits, and are for Hopper")
    q, weight, wanted = head_products(rows, dtype)
    out = torch.full((rows, 20, 576), float("nan"), dtype=dtype, device="cuda")
    found = ops.by_head(HeadProduct(q[..., :192], weight, out[..., :512], uniform=uniform))
    torch.testing.assert_close(found.double(), wanted, atol=20 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert out[..., 512:].isnan().all()
    if uniform:
        one = HeadProduct(q[-1:, :, :192], weight, torch.empty_like(out[:1, :, :512]), uniform=True)
        assert torch.equal(ops.by_head(one), found[-1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 40, 70])
def test_a_product_beside_what_is_kept(rows: int, dtype: torch.dtype) -> None:
    """The same bits as in launches of their own; of the tokens the last have no product."""
    tokens = rows + 2
    q, weight, _ = head_products(tokens, dtype)
    kept, at = torch.randn(tokens, 576).to(dtype).cuda(), torch.arange(tokens).cuda()
    norm, cos_sin = RmsNorm(torch.randn(512).to(dtype).cuda()), torch.randn(100, 64).cuda()
    found = []
    for together in (False, True):
        out = torch.full((tokens, 20, 576), float("nan"), dtype=dtype, device="cuda")
        cache = torch.zeros(6, 1, 1, 16 * 576, dtype=dtype, device="cuda")
        product = HeadProduct(q[:rows, :, :192], weight, out[:rows, :, :512])
        place = (kept, norm, out, cache, at + 16, at, cos_sin)
        ops.keep_latent(q[..., 192:], *place, beside=product if together else None)
        if not together:
            ops.by_head(product)
        found.append((out, cache))
    for alone, beside in zip(*found, strict=True):
        torch.testing.assert_close(beside, alone, rtol=0, atol=0, equal_nan=True)


def test_padding_is_not_kept() -> None:
    cache = torch.zeros(2, 1, 1, 16 * 24, device="cuda")
    ones = torch.ones(2, 24, device="cuda")
    q = torch.zeros(2, 1, 24, device="cuda")
    slots, positions = torch.tensor([-1, 3], device="cuda"), torch.tensor([0, 1], device="cuda")
    norm = RmsNorm(torch.ones(16, device="cuda"))
    ops.keep_latent(ones[:, None, 16:], ones, norm, q, cache, slots, positions, torch.ones(4, 8, device="cuda"))
    assert int(cache.count_nonzero()) == 24 - 4  # of what is rotated, ones become zeros and twos
    assert int(cache[1].count_nonzero()) == 0
    assert int(q.count_nonzero()) == 2 * 4
