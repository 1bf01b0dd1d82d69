"""Latent attention on the CPU: one row of a token, whose first elements are its values and whose last are rotated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo_kernels import ops, reference
from octavo_kernels.attention.latent import latent_cells
from octavo_kernels.ops import HeadProduct

CELLS = [torch.int8, torch.float8_e4m3fn]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
LENGTHS = [(1, 1), (1, 15), (1, 17), (1, 64), (1, 65), (1, 700), (5, 5), (33, 33), (17, 48), (3, 600), (0, 20)]
ROTARY = 8


def empty(blocks: int, width: int, dtype: torch.dtype, block_size: int, cells: torch.dtype | None = None) -> Tensor:
    """A cache of NaN, between other layers' parts."""
    count = latent_cells(width, width - ROTARY, block_size, dtype, cells or dtype)
    if cells is None:
        return torch.full((blocks, 2, count), float("nan"), dtype=dtype)[:, 1:, None]
    return torch.full((blocks, 2, count), 255, dtype=torch.uint8)[:, 1:, None].view(cells)


def as_kept(rows: Tensor, rank: int, cells: torch.dtype) -> Tensor:
    """Rows `[T, 1, width]` as a cache in eight bits has them: of the first `rank` columns codes and a scale."""
    latent = rows[..., :rank]
    codes, scales = reference.quantise(latent.float(), cells)
    return torch.cat((codes.double() * scales.double(), rows[..., rank:].double()), dim=-1)


@dataclass
class Rows:
    """Sequences in one paged cache: blocks shuffled, what is not written is NaN. `keys` are those of each sequence."""

    queries: Tensor
    cache: Tensor
    tables: Tensor
    context_lens: Tensor
    query_start: Tensor
    keys: list[Tensor]
    block_size: int

    def attend(self, values: int, scale: float = 0.125) -> Tensor:
        out = self.queries.new_full((*self.queries.shape[:2], values), float("nan"))
        sequences = (self.tables, self.context_lens, self.query_start)
        return ops.latent_attention(self.queries, self.cache, *sequences, out, scale, self.block_size)


def written(
    lengths: list[tuple[int, int]],
    heads: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    block_size: int = 16,
    cells: torch.dtype | None = None,
) -> Rows:
    """Queries and keys as `write_latent` rotates and writes them; the cache is one of `cells`, if they are given."""
    generator = torch.Generator().manual_seed(heads + width)
    needed = [-(-context // block_size) for _, context in lengths]
    cache = empty(sum(needed) + 2, width, dtype, block_size, cells)
    order = torch.randperm(sum(needed), generator=torch.Generator().manual_seed(block_size)) + 1
    tables = torch.full((len(lengths), max(needed)), -(2**31), dtype=torch.int32)
    cos_sin = torch.randn(1000, ROTARY, generator=generator)
    queries, keys, start = [], [], 0
    for row, ((asked, context), count) in enumerate(zip(lengths, needed, strict=True)):
        blocks = order[start : start + count]
        tables[row, :count] = blocks
        start += count
        x = torch.randn(context, (heads + 1) * width, generator=generator).to(dtype)
        at = torch.arange(context)
        slots = blocks[at // block_size] * block_size + at % block_size
        q = torch.empty(context, heads, width, dtype=dtype)
        ops.write_latent(x, q, cache, slots, at, cos_sin, block_size)
        turned = x.view(context, heads + 1, width).float().clone()
        turned[..., -ROTARY:] = reference.rope(turned[..., -ROTARY:], at, cos_sin)
        assert torch.allclose(q.float(), turned[:, :heads].to(dtype).float(), atol=1e-6)
        queries.append(q[context - asked :])
        kept = turned[:, heads:].to(dtype)
        keys.append(kept if cells is None else as_kept(kept, width - ROTARY, cells))
    starts = torch.tensor([0, *(asked for asked, _ in lengths)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    lens = torch.tensor([context for _, context in lengths], dtype=torch.int32)
    return Rows(torch.cat(queries), cache, tables, lens, starts, keys, block_size)


def check(rows: Rows, values: int) -> None:
    out = rows.attend(values)
    for number, keys in enumerate(rows.keys):
        own = slice(int(rows.query_start[number]), int(rows.query_start[number + 1]))
        expected = reference.attention(rows.queries[own].double(), keys.double(), keys.double(), 0.125)[..., :values]
        tolerance = TOLERANCE[rows.queries.dtype]
        torch.testing.assert_close(out[own].double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_values_are_the_first_of_the_keys(level: str, dtype: torch.dtype) -> None:
    check(written(LENGTHS, 5, 40, dtype), 32)
    check(written(LENGTHS[:6], 3, 64, dtype), 64)  # as wide as keys, and whole tiles


@pytest.mark.parametrize(("heads", "width", "values"), [(16, 576, 512), (40, 288, 256), (1, 24, 12), (3, 64, 64)])
def test_widths_of_models(level: str, heads: int, width: int, values: int) -> None:
    check(written([(1, 130), (6, 40)], heads, width), values)


@pytest.mark.parametrize("block_size", [4, 8, 16, 32, 64])
def test_bits_depend_neither_on_blocks_nor_on_how_a_prompt_is_cut(level: str, block_size: int) -> None:
    lengths = [(1, 70), (60, 90), (9, 9)]
    rows, small = written(lengths, 4, 40, torch.bfloat16), written(lengths, 4, 40, torch.bfloat16, block_size)
    assert torch.equal(rows.queries, small.queries)
    whole = rows.attend(32)
    assert torch.equal(small.attend(32), whole)
    cut = Rows(
        rows.queries[1:41], rows.cache, rows.tables[1:2], torch.tensor([70], dtype=torch.int32),
        torch.tensor([0, 40], dtype=torch.int32), [], 16,
    )  # fmt: skip
    assert torch.equal(cut.attend(32), whole[1:41])


@pytest.mark.parametrize("cells", CELLS, ids=str)
def test_latents_in_eight_bits_are_read_as_they_were_rounded(level: str, cells: torch.dtype) -> None:
    for dtype in TOLERANCE:
        check(written(LENGTHS, 5, 40, dtype, cells=cells), 32)
    check(written([(1, 130), (6, 40)], 16, 520, cells=cells), 512)
    whole = written([(1, 70), (60, 90), (9, 9)], 4, 40, torch.bfloat16, cells=cells)
    small = written([(1, 70), (60, 90), (9, 9)], 4, 40, torch.bfloat16, 4, cells)
    assert torch.equal(small.attend(32), whole.attend(32))


@pytest.mark.parametrize("block_size", [4, 16, 32])
@pytest.mark.parametrize("cells", [None, *CELLS], ids=str)
def test_rows_are_read_as_they_were_kept(cells: torch.dtype | None, block_size: int) -> None:
    """Blocks are any, in any order: those of a table are a sequence's keys."""
    for dtype in TOLERANCE:
        rows = written([(1, 70), (60, 90), (9, 9)], 2, 40, dtype, block_size, cells)
        for table, keys in zip(rows.tables, rows.keys, strict=True):
            count = -(-len(keys) // block_size)
            out = torch.full((count * block_size, 40), float("nan"), dtype=dtype)
            assert ops.read_latent(rows.cache, table[:count], out, 32, block_size) is out
            torch.testing.assert_close(out[: len(keys)].double(), keys[:, 0].double(), atol=1e-6, rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"blocks": torch.zeros(1, dtype=torch.int32)}, r"blocks must have shape \[2\]"),
        ({"out": torch.empty(33, 40)}, "out must have 16 rows for each block, not 33"),
        ({"values": 41}, "values must be 1 to 40, not 41"),
        ({"out": torch.empty(32, 48)}, "layer_cache must have shape"),
    ],
)
def test_reads_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    given = {"blocks": torch.zeros(2, dtype=torch.int32), "out": torch.empty(32, 40), "values": 32, **changed}
    with pytest.raises(ValueError, match=message):
        ops.read_latent(empty(3, 40, torch.float32, 16), **given)


@pytest.mark.parametrize("cells", CELLS, ids=str)
def test_rotated_keys_are_kept_as_they_are_beside_codes(cells: torch.dtype) -> None:
    """Keys are a thousand times as large as the latent, which would lose all of its places to a common scale."""
    generator = torch.Generator().manual_seed(1)
    row = torch.randn(1, 2 * 24, generator=generator).to(torch.bfloat16)
    row[:, 40:] *= 1000
    cache = torch.zeros(1, 1, 1, latent_cells(24, 16, 16, torch.bfloat16, cells), dtype=cells)
    still = torch.cat((torch.ones(1, 4), torch.zeros(1, 4)), dim=1)
    place = torch.tensor([5])
    ops.write_latent(row, torch.empty(1, 1, 24, dtype=row.dtype), cache, place, torch.tensor([0]), still)
    codes, (scale,) = reference.quantise(row[0, None, 24:40].float(), cells)
    block = cache.view(-1)
    assert torch.equal(block[: 16 * 16].view(16, 16)[:, 5].float(), codes[0].float())
    assert float(block[16 * 16 : 20 * 16].view(torch.float32)[5]) == float(scale)
    assert torch.equal(block[20 * 16 :].view(torch.bfloat16).view(8, 16)[:, 5], row[0, 40:])


def test_padding_is_not_written() -> None:
    cache = torch.zeros(2, 1, 1, 16 * 24)
    ones = torch.ones(2, 2 * 24)
    slots, positions = torch.tensor([-1, 3]), torch.tensor([0, 1])
    ops.write_latent(ones, torch.empty(2, 1, 24), cache, slots, positions, torch.ones(4, 8))
    assert int(cache.count_nonzero()) == 24 - 4  # of what is rotated, ones become zeros and twos
    assert int(cache[1].count_nonzero()) == 0


@pytest.mark.parametrize(("width", "message"), [(584, "576 wide, not 584"), (20, "a multiple of 8")])
def test_rows_that_no_cache_can_have(width: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.check_latent(width)


def test_operands_that_do_not_fit() -> None:
    rows = written([(2, 20)], 4, 24)
    with pytest.raises(ValueError, match="1 to 24 values a head, not 32"):
        rows.attend(32)
    with pytest.raises(ValueError, match="layer_cache must have shape"):
        Rows(rows.queries, rows.cache.expand(-1, 2, -1, -1), *_others(rows)).attend(16)
    packed, place = torch.zeros(2, 4 * 24), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"\(4 \+ 1\) \* 24 columns, not 96"):
        ops.write_latent(packed, torch.empty(2, 4, 24), rows.cache, place, place, torch.ones(4, 8))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_head_has_its_own_matrix(dtype: torch.dtype) -> None:
    """Heads lie apart, and a row's bits are its own."""
    x, weight = torch.randn(9, 3, 48).to(dtype)[..., :40], torch.randn(3 * 24, 40).to(dtype)
    room = torch.full((9, 3, 30), float("nan"), dtype=dtype)
    out = ops.by_head(HeadProduct(x, weight, room[..., :24]))
    wanted = torch.einsum("thd,hcd->thc", x.double(), weight.double().view(3, 24, 40))
    torch.testing.assert_close(out.double(), wanted, atol=20 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert room[..., 24:].isnan().all()
    alone = ops.by_head(HeadProduct(x[4:5], weight, torch.empty(1, 3, 24, dtype=dtype)))
    assert torch.equal(alone, out[4:5])


def test_products_by_head_that_do_not_fit() -> None:
    x, out = torch.zeros(2, 3, 8), torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match=r"weight must have shape \[12, 8\]"):
        ops.by_head(HeadProduct(x, torch.zeros(4, 8), out))
    with pytest.raises(ValueError, match="rows side by side"):
        ops.by_head(HeadProduct(x, torch.zeros(12, 16)[:, :8], out))
    with pytest.raises(TypeError, match="out must be"):
        ops.by_head(HeadProduct(x, torch.zeros(12, 8), out.bfloat16()))


def _others(rows: Rows) -> tuple[Tensor, Tensor, Tensor, list[Tensor], int]:
    return rows.tables, rows.context_lens, rows.query_start, rows.keys, rows.block_size
