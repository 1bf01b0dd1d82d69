"""The number of drafts that gives most tokens per second, and never fewer than none would."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.engine.drafts import Acceptance, RowTimes, StepCosts, choose_lengths, expected_tokens

MILLISECOND = 1e-3

probabilities = st.integers(0, 20).map(lambda n: n / 20)
times = st.lists(st.integers(1, 60), min_size=1, max_size=6).map(
    lambda found: RowTimes([(4 * place + 1, MILLISECOND * found[place]) for place in range(len(found))])
)
costs = st.builds(StepCosts, times, times)
batches = st.lists(st.tuples(st.integers(0, 4), probabilities), min_size=1, max_size=4)


def rate(lengths: list[int], acceptances: list[float], costs: StepCosts, others: int) -> float:
    """Tokens per second of a step, by the definition."""
    tokens = sum(expected_tokens(a, k) for a, k in zip(acceptances, lengths, strict=True))
    if not any(lengths):
        return tokens / costs.without_drafts(len(lengths), others)
    return tokens / float(costs.ragged.seconds(len(lengths) + sum(lengths) + others))


@given(batches, costs, st.integers(0, 5))
def test_no_other_lengths_give_more(batch: list[tuple[int, float]], costs: StepCosts, others: int) -> None:
    offered, acceptances = [k for k, _ in batch], [a for _, a in batch]
    chosen = choose_lengths(offered, acceptances, costs, others=others)
    assert all(0 <= k <= most for k, most in zip(chosen, offered, strict=True))
    found = rate(chosen, acceptances, costs, others)
    assert found >= rate([0] * len(offered), acceptances, costs, others)
    room = costs.ragged.most_rows - len(offered) - others
    assert sum(chosen) <= max(0, room)
    possible = (lengths for lengths in product(*(range(k + 1) for k in offered)) if sum(lengths) <= max(0, room))
    best = max(rate(list(lengths), acceptances, costs, others) for lengths in possible)
    assert found == pytest.approx(best, rel=1e-9)


@given(
    offered=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    pair=st.tuples(probabilities, probabilities).map(sorted),
    costs=costs,
    others=st.integers(0, 5),
)
def test_drafts_do_not_get_fewer_where_more_are_right(
    offered: list[int], pair: list[float], costs: StepCosts, others: int
) -> None:
    worse, better = (choose_lengths(offered, [a] * len(offered), costs, others=others) for a in pair)
    assert sum(worse) <= sum(better)


def linear(milliseconds: float, by_row: float, rows: int = 512) -> RowTimes:
    return RowTimes([(n, MILLISECOND * (milliseconds + by_row * n)) for n in range(1, rows + 1)])


def test_rows_that_cost_nothing_are_all_used() -> None:
    free = StepCosts(linear(4, 0), linear(4, 0))
    assert choose_lengths([3, 0, 8], [0.5, 0.9, 0.9], free) == [3, 0, 8]


def test_the_most_likely_drafts_come_first() -> None:
    two_more = StepCosts(linear(4, 0), RowTimes([(4, 4.1 * MILLISECOND), (5, 400 * MILLISECOND)]))
    assert choose_lengths([5, 5], [0.3, 0.9], two_more) == [0, 2]


def test_a_busy_device_verifies_nothing() -> None:
    bound_by_arithmetic = StepCosts(linear(0, 1), linear(0, 1))
    assert choose_lengths([4] * 64, [0.9] * 64, bound_by_arithmetic) == [0] * 64


def test_a_verifying_step_that_is_slower_in_itself_needs_more_acceptance() -> None:
    costs = StepCosts(linear(4, 0), linear(6, 0))
    assert choose_lengths([4], [0.3], costs) == [0]
    assert choose_lengths([4], [0.8], costs) == [4]


def test_beside_prompts_the_step_is_ragged_anyway() -> None:
    costs = StepCosts(linear(4, 0), linear(6, 0))
    assert choose_lengths([4], [0.3], costs, others=100) == [4]


def test_no_step_is_planned_that_was_not_measured() -> None:
    costs = StepCosts(linear(4, 0), linear(4, 0, rows=16))
    assert sum(choose_lengths([8] * 10, [0.9] * 10, costs)) == 6
    assert choose_lengths([8] * 16, [0.9] * 16, costs) == [0] * 16
    assert choose_lengths([8], [0.9], costs, others=300) == [0]


@given(batches, costs, st.integers(0, 5))
def test_none_pays_below_the_least_acceptance(batch: list[tuple[int, float]], costs: StepCosts, others: int) -> None:
    offered, acceptances = [k for k, _ in batch], [a for _, a in batch]
    least = costs.least_acceptance(len(batch), others, sum(offered))
    if any(choose_lengths(offered, acceptances, costs, others=others)):
        assert max(a for k, a in batch if k) > least
    if sum(offered) and costs.ragged.most_rows > len(batch) + others and least < 0.99:
        assert any(choose_lengths(offered, [1.0] * len(batch), costs, others=others))


def test_no_sequences_and_no_guesses_are_fine() -> None:
    costs = StepCosts(linear(4, 0), linear(4, 0))
    assert choose_lengths([], [], costs) == []
    assert choose_lengths([0, 0], [0.5, 0.5], costs) == [0, 0]


def test_times_grow_evenly_between_sizes_and_never_fall() -> None:
    times = RowTimes([(16, 3.0), (5, 2.0), (8, 1.5), (1, 1.0)])
    assert times.seconds([1, 3, 5, 6, 8, 12, 16, 32]).tolist() == [1.0, 1.25, 1.5, 1.5, 1.5, 2.25, 3.0, 6.0]
    assert times.most_rows == 16


def test_padded_steps_take_as_long_as_the_next_larger_one() -> None:
    times = RowTimes([(16, 3.0), (5, 2.0), (8, 1.5), (1, 1.0)], padded=True)
    assert times.seconds([1, 2, 5, 6, 9, 16, 32]).tolist() == [1.0, 1.5, 1.5, 1.5, 3.0, 3.0, 6.0]
    costs = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4, 2.0), (6, 8.1)], padded=True))
    assert choose_lengths([7], [0.99], costs) == [3]


@pytest.mark.parametrize("measured", [[], [(0, 1.0)], [(1, 0.0)], [(1, 1.0), (2, -1.0)]])
def test_times_that_cannot_be_are_refused(measured: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="times of steps"):
        RowTimes(measured)


@pytest.mark.parametrize("slower", [1.001, 1.01, 1.03, 1.1, 1.3, 2.0])
@pytest.mark.parametrize("sequences", [1, 16])
def test_hopeless_drafts_cost_less_than_a_fiftieth(slower: float, sequences: int) -> None:
    costs = StepCosts(linear(4, 0), linear(4 * slower, 0.001))
    estimates = [Acceptance() for _ in range(sequences)]
    spent, steps = 0.0, 3000
    for _ in range(steps):
        lengths = choose_lengths([8] * sequences, [each.estimate for each in estimates], costs)
        spent += costs.ragged.seconds(sequences + sum(lengths)) if any(lengths) else costs.plain.seconds(sequences)
        for each, drafted in zip(estimates, lengths, strict=True):
            each.observe(drafted or 1, 0)
    assert steps * costs.plain.seconds(sequences) / spent > 0.98


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.9])
def test_choice_and_estimate_together_come_near_the_best_fixed_length(acceptance: float) -> None:
    costs, rng = StepCosts(linear(4, 0.01), linear(4.2, 0.08)), random.Random(5)
    estimate, said, spent = Acceptance(), 0, 0.0
    for _ in range(4000):
        (length,) = choose_lengths([8], [estimate.estimate], costs)
        rights = [rng.random() < acceptance for _ in range(length)]
        accepted = next((place for place, right in enumerate(rights) if not right), length)
        said += accepted + 1
        spent += float(costs.ragged.seconds(1 + length)) if length else costs.without_drafts(1, 0)
        estimate.observe(length, accepted) if length else estimate.observe(1, int(rng.random() < acceptance))
    best = max(rate([length], [acceptance], costs, 0) for length in range(9))
    assert said / spent > 0.95 * best
