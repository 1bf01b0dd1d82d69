"""The source of the GPU kernels for wide heads, run on the CPU with threads and copies in a random order.

What this shows: the arithmetic, that a stretch of keys for each block adds up to all, that a row's bits are its own
where none is cut, and that nothing is read before it is there. What it does not: speed. test_cuda_wide.py runs them on
a GPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from .emulated_wide import EmulatedWide
from .wide_rows import SCALE, WideRows, wide_rows

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

KINDS = {
    "20 heads of a latent": (20, 1, True),
    "96 heads of a latent": (96, 1, True),
    "4 heads a KV head": (8, 2, False),
}
LENGTHS = [(1, 300), (3, 70), (0, 20), (1, 1), (9, 9), (1, 0), (1, 64)]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedWide:
    return EmulatedWide(tmp_path_factory.mktemp("wide"))


def attend(emulated: EmulatedWide, rows: WideRows, blocks: int, seed: int = 1, **options: bool) -> Tensor:
    emulated.set_up(blocks, seed)
    return emulated.attend(rows.queries, rows.cache, *rows.sequences(), SCALE, rows.block_size, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_reference(emulated: EmulatedWide, kind: str, dtype: torch.dtype) -> None:
    heads, kv_heads, latent = KINDS[kind]
    rows = wide_rows(LENGTHS, heads, kv_heads, latent=latent, dtype=dtype)
    rows.check(attend(emulated, rows, 3))


@pytest.mark.parametrize("kind", ["20 heads of a latent", "4 heads a KV head"])
def test_caches_in_eight_bits(emulated: EmulatedWide, kind: str) -> None:
    """Cells and data are of both types, blocks of two sizes; what is read is what the reference rounds to."""
    heads, kv_heads, latent = KINDS[kind]
    for cells, dtype, block_size in ((torch.int8, torch.bfloat16, 16), (torch.float8_e4m3fn, torch.float16, 128)):
        options = {"latent": latent, "dtype": dtype, "block_size": block_size, "cells": cells}
        rows = wide_rows([(1, 200), (3, 70), (0, 20), (1, 1), (1, 64)], heads, kv_heads, **options)
        rows.check(attend(emulated, rows, 3))


@pytest.mark.parametrize("latent", [True, False])
def test_bits_in_eight_bits_are_a_rows_own_where_no_keys_are_cut(emulated: EmulatedWide, latent: bool) -> None:
    """And values of any size have room among weights of 16 bits."""
    rows = wide_rows([(7, 90)], 8, latent=latent, dtype=torch.float16, cells=torch.int8, rising=True)
    whole = attend(emulated, rows, 3, cuts=False)
    rows.check(whole, scaled=latent)
    assert torch.equal(attend(emulated, rows.only(0, 3, 7), 2, seed=9, cuts=False), whole[3:7])


@pytest.mark.parametrize("latent", [True, False])
def test_scores_that_rise(emulated: EmulatedWide, latent: bool) -> None:
    rows = wide_rows([(1, 400), (2, 200)], 4, latent=latent, dtype=torch.float16, rising=True)
    rows.check(attend(emulated, rows, 2), scaled=latent)


@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_blocks_of_any_size(emulated: EmulatedWide, block_size: int) -> None:
    rows = wide_rows([(1, 150), (2, 65)], 5, block_size=block_size)
    rows.check(attend(emulated, rows, 2))


@pytest.mark.parametrize("blocks", [1, 2, 5, 40])
def test_keys_go_to_any_number_of_blocks(emulated: EmulatedWide, blocks: int) -> None:
    rows = wide_rows([(1, 900), (1, 200), (30, 130)], 6)
    rows.check(attend(emulated, rows, blocks, seed=blocks))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_a_row_are_its_own_where_no_keys_are_cut(emulated: EmulatedWide, kind: str) -> None:
    heads, kv_heads, latent = KINDS[kind]
    rows = wide_rows([(1, 150), (7, 90)], heads, kv_heads, latent=latent)
    whole = attend(emulated, rows, 3, cuts=False)
    rows.check(whole)
    for number, first, last in ((0, 0, 1), (1, 0, 3), (1, 3, 7)):
        begin = int(rows.query_start[number])
        alone = attend(emulated, rows.only(number, first, last), 2, seed=9, cuts=False)
        assert torch.equal(alone, whole[begin + first : begin + last])


def test_a_plan_covers_each_tile_once(emulated: EmulatedWide) -> None:
    """In stretches of one length, but for the last."""
    generator = torch.Generator().manual_seed(3)
    for blocks in (1, 3, 17, 132):
        emulated.set_up(blocks, blocks)
        asked = torch.randint(0, 40, (700,), generator=generator)
        contexts = (asked + torch.randint(0, 3000, (700,), generator=generator)).to(torch.int32)
        start = torch.cat((torch.zeros(1), asked.cumsum(0))).to(torch.int32)
        for cuts in (True, False):
            starts, folds = emulated.plan(contexts, start, 10, 2, cuts=cuts)
            _check_plan(starts.tolist(), folds.tolist(), contexts.tolist(), asked.tolist(), cuts=cuts)


def _check_plan(
    starts: list[list[int]], folds: list[list[int]], contexts: list[int], asked: list[int], *, cuts: bool
) -> None:
    places = [tuple(start[:3]) for start in starts]
    assert places == sorted(places)
    assert places[0] == (0, 0, 0)
    assert places[-1] == (len(contexts), 0, 0)
    inside = sorted(place for place in places if place[2] > 0)
    assert cuts or not inside
    assert len(set(inside)) == len(inside)
    for sequence, tile, key in inside:
        seen = contexts[sequence] - asked[sequence] + min(asked[sequence] - 1, (tile // 2 * 64 + 63) // 10) + 1
        assert key < -(-seen // 64)
    found = {(fold[0], fold[1]): fold for fold in folds if fold[3]}
    assert set(found) == {place[:2] for place in inside}
    for place, (_, _, first, parts) in found.items():
        begins = [block for block, start in enumerate(places) if start[:2] == place and start[2] > 0]
        assert begins == list(range(first + 1, first + parts))


def test_what_it_does_not_take_is_refused(emulated: EmulatedWide) -> None:
    rows = wide_rows([(1, 20)], 4)
    emulated.set_up(2, 1)
    operands = (rows.queries, rows.cache, *rows.sequences(), SCALE, rows.block_size)
    for changed in ({"window": 16}, {"softcap": 2.0}, {"head_dim": 512}, {"out_stride": 2052}, {"dtype": 0}):
        with pytest.raises(ValueError, match="error 1"):
            emulated.attend(*operands, **changed)


def test_nothing_behind_a_context_is_read(emulated: EmulatedWide) -> None:
    """Cells there are NaN, in the last block, too, and so are blocks that no table names."""
    rows = wide_rows([(1, 17)], 3, latent=False)
    other = replace(rows, cache=rows.cache.nan_to_num(3.0))
    assert torch.equal(attend(emulated, rows, 1), attend(emulated, other, 1))
