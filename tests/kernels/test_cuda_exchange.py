"""Sums and gathers over ranks in processes of their own: bits, graphs, races, and ranks that do not come.

With fewer GPUs than ranks several share one, in turns: slow, but the same code.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from octavo_kernels.exchange.gpus import Way

from .exchange_ranks import Ranks

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain, pytest.mark.timeout(0)]

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
COUNTS = [2, *([4] if torch.cuda.device_count() >= 4 else []), *([8] if torch.cuda.device_count() >= 8 else [])]
SMALL, MANY = [1, 2, 7, 16, 33, 64], [1, 5, 129, 300, 1000]


@pytest.fixture(scope="module", params=COUNTS)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    started = Ranks(request.param)
    yield started
    started.close()


@pytest.fixture
def two() -> Iterator[Ranks]:
    """Which a test may kill."""
    started = Ranks(2)
    yield started
    started.close()


def assert_equal(answers: list[object]) -> None:
    assert all(answer == answers[0] for answer in answers)


def test_the_ranks_reach_each_other(ranks: Ranks) -> None:
    ranks.ask("checked")


@pytest.mark.parametrize("bare", [True, False], ids=["sum", "residual and norm"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_have_the_bits_of_a_sum_in_order_on_all_ranks(ranks: Ranks, dtype: torch.dtype, bare: bool) -> None:
    cases = [(rows, columns, dtype) for columns in (2048, 4096, 5120, 8192) for rows in SMALL + MANY]
    assert_equal(ranks.ask("adds", cases=cases, ways=[None], bare=bare))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pushed_or_pulled_the_bits_are_the_same(ranks: Ranks, dtype: torch.dtype) -> None:
    cases = [(rows, columns, dtype) for columns in (64, 2048, 4096, 5128, 8192) for rows in (1, 3, 4)]
    assert_equal(ranks.ask("adds", cases=cases, ways=[*Way], bare=False))
    cases = [(rows, columns, dtype) for columns in (8192, 5120) for rows in (100, 517)]
    assert_equal(ranks.ask("adds", cases=cases, ways=[Way.PULL, Way.SHARED_PULL], bare=False))


def test_gathers_keep_every_bit(ranks: Ranks) -> None:
    words = [1, 2, 3, 4, 5, 64, 1000, 4097, 65536, 196608, 196609, 1 << 20, (1 << 20) + 3]
    assert_equal(ranks.ask("gathers", words=words))


@pytest.mark.parametrize("rows", [1, 20])
def test_graphs_count_their_calls_themselves(ranks: Ranks, rows: int) -> None:
    assert_equal(ranks.ask("replays", case=(rows, 4096, torch.bfloat16), times=20))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ranks_race_through_sizes(ranks: Ranks, seed: int) -> None:
    assert ranks.ask("races", rounds=1500, seed=seed) == [[]] * len(ranks)


@pytest.mark.parametrize("rows", [1, 2000], ids=["push", "pull"])
def test_a_wait_for_a_rank_that_was_killed_ends_by_abort(two: Ranks, rows: int) -> None:
    two.ask("checked")
    assert not two.ask_one(0, "begin", rows=rows)
    two.kill(1)
    assert two.ask_one(0, "abort")


@pytest.mark.parametrize("rows", [1, 2000], ids=["push", "pull"])
def test_a_wait_for_a_rank_that_does_not_come_ends_by_its_time(two: Ranks, rows: int) -> None:
    assert not two.ask_one(0, "begin", rows=rows)
    assert two.ask_one(0, "end")
    two.ask_one(0, "begin", rows=rows)
    assert two.ask_one(0, "end"), "the wait of a later call ends as well"
