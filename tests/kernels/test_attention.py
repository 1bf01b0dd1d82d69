from dataclasses import replace

import pytest
import torch

from octavo_kernels import ops, reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FP8 = torch.float8_e4m3fn
CACHES = [
    *({"dtype": dtype} for dtype in DTYPES),
    {"dtype": torch.float32, "cells": torch.int8},
    {"dtype": torch.bfloat16, "cells": torch.int8},
    {"dtype": torch.bfloat16, "cells": FP8},
    {"dtype": torch.float16, "cells": FP8},
]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
MIXED = [(1, 1), (1, 15), (1, 16), (1, 17), (1, 64), (1, 65), (1, 700), (5, 5), (33, 33), (17, 48), (3, 600), (0, 20)]


def check(batch, scale=0.125, sinks=None, tolerance=None, **options):
    tolerance = tolerance or TOLERANCE[batch.q.dtype]
    out = batch.attend(scale, **options, **({} if sinks is None else {"sinks": sinks}))
    for i in range(len(batch.keys)):
        rows = batch.rows(i)
        expected = reference.attention(
            batch.q[rows].double(), batch.keys[i].double(), batch.values[i].double(), scale, sinks=sinks, **options
        )
        torch.testing.assert_close(out[rows].double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_decode_and_prefill_in_one_call(level, make_batch, cache):
    check(make_batch(MIXED, **cache))


@pytest.mark.parametrize("head_dim", [16, 40, 64, 72, 80, 96, 128, 256])
def test_head_dims(level, make_batch, head_dim):
    check(make_batch([(1, 100), (9, 70)], head_dim=head_dim))


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cells", [torch.int8, FP8], ids=str)
@pytest.mark.parametrize(
    ("head_dim", "block_size"), [(8, 16), (40, 32), (64, 16), (80, 64), (128, 128), (64, 4), (40, 8)]
)
def test_eight_bits(level, make_batch, dtype, cells, head_dim, block_size):
    """Keys and values as they were rounded when they were written: nothing more is lost."""
    batch = make_batch(
        [*MIXED, (90, 90), (70, 300)], heads=6, head_dim=head_dim, block_size=block_size, dtype=dtype, cells=cells
    )
    check(batch)
    check(batch, sliding_window=45)
    check(batch, softcap=2.0)
    check(batch, sinks=torch.tensor([-3.0, 0.0, 2.0, 30.0, 1.0, -1.0]), sliding_window=20)


@pytest.mark.parametrize("cells", [torch.int8, FP8], ids=str)
def test_eight_bits_with_large_scores(level, make_batch, cells):
    check(make_batch([(1, 300), (8, 40)], cells=cells), scale=30.0, tolerance=5e-4)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (6, 2), (7, 1), (8, 1), (9, 3), (40, 1), (16, 2)])
def test_head_groups(level, make_batch, heads, kv_heads):
    check(make_batch([(1, 130), (4, 20), (1, 530)], heads=heads, kv_heads=kv_heads, head_dim=32))


@pytest.mark.parametrize("block_size", [4, 8, 16, 32, 64, 128])
def test_block_sizes(level, make_batch, block_size):
    check(make_batch([(1, 1), (1, 129), (40, 200)], block_size=block_size))


@pytest.mark.parametrize("cells", [None, torch.int8, FP8], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [4, 8])
def test_small_blocks_change_no_bit(level, make_batch, block_size, dtype, cells):
    lengths = [(1, 1), (1, 129), (3, 63), (40, 200), (130, 130)]
    batch = make_batch(lengths, dtype=dtype, cells=cells, head_dim=48)
    longest, needed = 200, [-(-length // block_size) for _, length in lengths]
    cache = ops.empty_cache(sum(needed), 2, 2, block_size, 48, cells or dtype)
    tables = torch.full((len(lengths), -(-longest // block_size)), -(2**31), dtype=torch.int32)
    order = torch.randperm(len(cache)).int()
    for row, (k, v), blocks in zip(tables, batch.written, order.split(needed), strict=True):
        row[: len(blocks)] = blocks
        position = torch.arange(len(k))
        slots = row[position // block_size].long() * block_size + position % block_size
        ops.write_kv(k, v, cache[:, 1], slots, block_size)
    small = replace(batch, cache=cache, tables=tables, block_size=block_size)
    for options in ({}, {"sliding_window": 21}, {"softcap": 3.0}):
        assert torch.equal(small.attend(**options), batch.attend(**options))


@pytest.mark.parametrize("window", [1, 7, 16, 64, 100, 512, 5000])
def test_sliding_window(level, make_batch, window):
    check(make_batch(MIXED), sliding_window=window)


def test_blocks_before_the_window_are_not_read(level, make_batch):
    batch = make_batch([(2, 1000)])
    expected = batch.attend(sliding_window=50)
    batch.tables[0, : (1000 - 2 - 50) // 16] = -(2**31)
    assert torch.equal(batch.attend(sliding_window=50), expected)


@pytest.mark.parametrize("softcap", [2.0, 50.0])
def test_softcap(level, make_batch, softcap):
    check(make_batch(MIXED), scale=1.0, softcap=softcap, tolerance=2e-5)


@pytest.mark.parametrize("window", [0, 20])
def test_sinks(level, make_batch, window):
    check(make_batch(MIXED), sinks=torch.tensor([-3.0, 0.0, 2.0, 30.0]), sliding_window=window)


def test_large_scores_do_not_overflow(level, make_batch):
    check(make_batch([(1, 300), (8, 40)]), scale=30.0, tolerance=5e-4)


def test_a_query_without_keys_gives_zeros(level, make_batch):
    batch = make_batch([(1, 0), (1, 5)])
    assert torch.equal(batch.attend()[0], torch.zeros(4, 64))


def test_strided_queries(level, make_batch):
    batch = make_batch([(3, 40), (1, 90)])
    expected = batch.attend()
    wide = torch.full((4, 12, 64), float("nan"))
    wide[:, 4:8] = batch.q
    batch.q = wide[:, 4:8]
    assert torch.equal(batch.attend(), expected)


@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_a_sequence_does_not_feel_its_neighbours(level, make_batch, cache):
    batch = make_batch(MIXED, heads=6, **cache)
    together = batch.attend()
    assert torch.equal(together, batch.attend()), "run to run"
    for i in range(len(batch.keys)):
        assert torch.equal(together[batch.rows(i)], batch.alone(i).attend())


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("cache", CACHES, ids=str)
@pytest.mark.parametrize("options", [{}, {"sliding_window": 90}, {"softcap": 5.0}], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 64), (3, 3, 128), (40, 1, 80), (16, 2, 40)])
def test_a_decode_step_equals_the_same_row_of_a_prefill(level, make_batch, cache, options, heads, kv_heads, head_dim):
    """Recomputing a sequence after preemption must not change a bit of what follows."""
    batch = make_batch([(620, 620)], heads=heads, kv_heads=kv_heads, head_dim=head_dim, **cache)
    prefill = batch.attend(**options)
    for last in (1, 2, 11, 60):
        assert torch.equal(prefill[-last:], batch.alone(0, last).attend(**options))
    for length in (1, 16, 17, 31, 64, 127, 128, 129, 255, 513, 600):
        earlier = batch.alone(0)
        earlier.q, earlier.context_lens = batch.q[length - 1 : length], torch.tensor([length], dtype=torch.int32)
        earlier.query_start = torch.tensor([0, 1], dtype=torch.int32)
        assert torch.equal(prefill[length - 1 : length], earlier.attend(**options))


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("scale", [0.125, -0.5, 40.0])
@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size"), [(2, 16, 16), (6, 48, 32), (34, 80, 16), (2, 128, 64), (2, 64, 8), (6, 80, 4)]
)
def test_bf16_shapes(level, make_batch, scale, heads, head_dim, block_size):
    batch = make_batch(
        [(1, 1), (1, 33), (1, 700), (90, 90), (70, 300), (5, 515)],
        heads=heads, head_dim=head_dim, block_size=block_size, dtype=torch.bfloat16,
    )  # fmt: skip
    check(batch, scale=scale)
    check(batch, scale=scale, sliding_window=45)


@pytest.mark.parametrize("cells", [None, torch.int8], ids=str)
def test_a_decode_step_equals_the_same_row_whether_its_context_is_cut_or_not(level, make_batch, threads, cells):
    """Long sequences are cut for lack of others: a batch of many must give the same bits."""
    batch = make_batch([(1, 1500)] * 40, heads=2, kv_heads=1, head_dim=32, dtype=torch.bfloat16, cells=cells)
    ops.set_num_threads(1)
    together = batch.attend()
    assert all(torch.equal(together[i : i + 1], batch.alone(i).attend()) for i in (0, 17, 39))


@pytest.mark.parametrize("cells", [None, torch.int8], ids=str)
def test_threads_do_not_change_a_bit(level, make_batch, threads, cells):
    batch = make_batch([*MIXED, (1, 3000), (100, 1200)], heads=6, cells=cells)
    results = []
    for n in (1, 2, 5):
        ops.set_num_threads(n)
        results.append(batch.attend())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
