"""The source of the kernels that sum and gather over GPUs, run on the CPU. Each GPU is a thread, whose stores arrive
late, in a random order and word by word.

What this shows: which parts meet, that no slot is read before it is written or written before it is read, and that
waits end. What it does not: speed, and what GPUs do to each other's memory; test_cuda_exchange.py runs them on some.
"""

from __future__ import annotations

import random
import threading

import pytest
import torch
from torch import Tensor

from octavo_kernels import reference
from octavo_kernels.exchange.gpus import Way
from octavo_kernels.operands import RmsNorm

from .emulated import aligned
from .emulated_exchange import EmulatedGpus, library

pytestmark = pytest.mark.nvcc  # with the time of any test: ranks that miss each other wait for ever

SLOT, PART = 1 << 12, 1 << 15
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return library(tmp_path_factory.mktemp("exchange"))


def summed(parts: list[Tensor], residual: Tensor | None) -> Tensor:
    total = torch.zeros(parts[0].shape)
    for part in [*parts, *([] if residual is None else [residual])]:
        total += part.float()
    return total.to(parts[0].dtype)


def values(*shape: int, dtype: torch.dtype) -> Tensor:
    """Many are zeros of either sign: alone, and in pairs that look like a word that has not come."""
    drawn = torch.randn(shape).to(dtype)
    drawn[torch.rand(shape) < 0.3] = 0.0
    drawn[torch.rand(shape) < 0.3] = -0.0
    return aligned(drawn)


def bits(x: Tensor) -> Tensor:
    return x.view(torch.uint8)


def add_once(gpus: EmulatedGpus, way: Way, rows: int, columns: int, dtype: torch.dtype, bare: bool) -> list[Tensor]:
    """Checks a sum; returns the norms."""
    parts = [values(rows, columns, dtype=dtype) for _ in range(gpus.ranks)]
    before = None if bare else values(rows, columns, dtype=dtype)
    norm = None if bare else RmsNorm(values(columns, dtype=dtype), 1e-5, 1.0)
    expected = summed(parts, before)
    got = gpus.each(
        lambda rank: gpus.add(
            rank, way, parts[rank] if way is Way.PUSH else gpus.addend(rank, parts[rank]),
            None if before is None else aligned(before), norm,
        )
    )  # fmt: skip
    assert not any(gpus.lost(rank) for rank in range(gpus.ranks))
    for out, _ in got:
        assert torch.equal(bits(out), bits(expected))
    if norm is None:
        return []
    normed = [of_rank for _, of_rank in got if of_rank is not None]
    exact = reference.rms_norm(expected.double(), norm.weight.double(), norm.eps, offset=norm.offset)
    for of_rank in normed:
        assert torch.equal(bits(of_rank), bits(normed[0]))
        torch.testing.assert_close(of_rank.double(), exact, rtol=ROUNDING[dtype], atol=1e-6)
    return normed


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_have_the_same_bits_on_all_ranks(built, ranks, dtype):
    gpus = EmulatedGpus(built, ranks, SLOT, PART, seed=ranks)
    for way, rows in ((Way.PUSH, 1), (Way.PUSH, 3), (Way.PULL, 5), (Way.SHARED_PULL, 2), (Way.SHARED_PULL, 11)):
        for columns in (16, 264):
            for bare in (True, False):
                add_once(gpus, way, rows, columns, dtype, bare)


def test_rows_that_a_block_has_in_two_vectors_a_thread(built):
    gpus = EmulatedGpus(built, 2, 1 << 17, 1 << 17)
    for way in Way:
        add_once(gpus, way, 2, 8192 + 520, torch.bfloat16, bare=False)


def test_norms_do_not_depend_on_how_parts_came(built):
    norms = []
    for way in Way:
        torch.manual_seed(1)
        norms.append(add_once(EmulatedGpus(built, 3, SLOT, PART), way, 3, 512, torch.bfloat16, bare=False)[0])
    assert all(torch.equal(norm, norms[0]) for norm in norms)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("way", [Way.PUSH, Way.PULL])
def test_gathers_keep_every_bit(built, ranks, way):
    gpus = EmulatedGpus(built, ranks, SLOT, PART, seed=ranks)
    for words in (1, 2, 3, 4, 64, 331, 768):
        every = torch.randint(-(2**31), 2**31, (ranks, words)).int()
        every[torch.rand(every.shape) < 0.3] = -(2**31)  # the word of what has not come
        got = gpus.each(lambda rank, every=every: gpus.gather(rank, way, aligned(every[rank])))
        assert all(torch.equal(of_rank, every) for of_rank in got)


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_of_any_size_and_way_follow_each_other(built, ranks):
    """A rank may be a call ahead. Blocks are one or many, slots full or hardly used."""
    drawn = random.Random(ranks)
    gpus = EmulatedGpus(built, ranks, SLOT, PART, seed=ranks)
    calls = [(drawn.choice([*Way, None]), drawn.choice([1, 1, 2, 4, 7]), drawn.choice([64, 192])) for _ in range(200)]
    parts = [[values(rows, columns, dtype=torch.float32) for _ in range(ranks)] for _, rows, columns in calls]

    def all_calls(rank: int) -> list[Tensor]:
        results = []
        for (way, rows, columns), of_call in zip(calls, parts, strict=True):
            if way is None:
                results.append(gpus.gather(rank, Way.PUSH if rows * columns < 700 else Way.PULL, of_call[rank]))
                continue
            pushed = way is Way.PUSH and rows * columns * 4 <= SLOT
            way = way if pushed or way is not Way.PUSH else Way.PULL
            addend = of_call[rank] if pushed else gpus.addend(rank, of_call[rank])
            results.append(gpus.add(rank, way, addend, None, None)[0])
        return results

    for results in gpus.each(all_calls):
        for (way, *_), of_call, result in zip(calls, parts, results, strict=True):
            assert torch.equal(result, torch.stack(of_call) if way is None else summed(of_call, None))


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize("ending", ["abort", "time"])
def test_a_wait_for_a_rank_that_does_not_come_ends(built, way, ending):
    gpus = EmulatedGpus(built, 2, SLOT, PART)
    addend = values(2, 64, dtype=torch.float32)
    if way is not Way.PUSH:
        addend = gpus.addend(0, addend)  # others would be looked for, and written to, at the same distance
    waiting = threading.Thread(target=lambda: gpus.add(0, way, addend, None, None))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    assert not gpus.lost(0)
    while waiting.is_alive():
        gpus.abort(0) if ending == "abort" else gpus.pass_time(5)
        waiting.join(0.05)
    assert gpus.lost(0)
    assert not gpus.lost(1)


def test_what_a_kernel_cannot_compute_it_refuses(built):
    gpus = EmulatedGpus(built, 1, SLOT, PART, blocks=1)
    for rows, columns in ((1, 6), (1, 8200), (1025, 4), (17, 4)):
        with pytest.raises(ValueError, match="add"):
            gpus.add(0, Way.PUSH, values(rows, columns, dtype=torch.float32), None, None)
    with pytest.raises(ValueError, match="gather"):
        gpus.gather(0, Way.PUSH, torch.zeros(SLOT // 16 * 3 + 1, dtype=torch.int32))
