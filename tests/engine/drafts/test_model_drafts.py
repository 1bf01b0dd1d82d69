"""The engine asks for drafts, and the runner guesses them: as many as pay, for those that it can guess for."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from engine_driver import Driver, assert_complete, make_request, prompt
from fake_runner import FakeRunner
from guessing_runner import Guessing, GuessingAndFailing, GuessingLate
from hypothesis import given
from hypothesis import strategies as st
from workloads import run_workload

from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import UNKNOWN
from octavo_worker.engine.drafts import (
    ModelProposer,
    RowTimes,
    Speculation,
    StepCosts,
    choose_lengths,
    expected_speedup,
    expected_tokens,
)
from octavo_worker.engine.process import speculation_for
from octavo_worker.memory.cost import PreemptionPolicy

FREE = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4096, 1.0)]), RowTimes([(1, 1e-9)]))
MEMORIES: dict[str, dict[str, Any]] = {
    "ample": {"usable_blocks": 400},
    "swap": {"usable_blocks": 60, "host_blocks": 80, "policy": PreemptionPolicy("swap")},
    "recompute": {"usable_blocks": 60, "host_blocks": 80, "policy": PreemptionPolicy("recompute")},
    "sliding": {"usable_blocks": 60, "window": 13},
    "oversized": {"usable_blocks": 40, "host_blocks": 200, "reads_host": True},
}


def by_model(most: int = 4, costs: StepCosts = FREE) -> Speculation:
    return Speculation(ModelProposer(), costs, most)


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("device", [Guessing, GuessingLate, GuessingAndFailing])
def test_no_token_tells_of_a_runner_that_guesses(device: type[Guessing], memory: str) -> None:
    for seed in range(2):
        speculation = by_model(1 + 3 * seed)
        driver = run_workload(
            seed, block_size=4, device=device, deadline_rate=0.1, speculation=speculation, **MEMORIES[memory]
        )
        stats = driver.scheduler.stats()
        assert 0 < stats.accepted_tokens < stats.drafted_tokens
        assert isinstance(driver.runner, Guessing)
        assert driver.runner.left_out > 0


def test_all_right_gives_all_tokens_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guessing, "right", 1.0)
    monkeypatch.setattr("random.Random.random", lambda self: 0.5)  # nothing is left out
    driver = Driver.create(61, 4, device=Guessing, speculation=by_model(4))
    request = make_request("a", prompt(10), max_tokens=26)
    driver.add(request)
    driver.run()
    assert_complete(driver, request)
    assert driver.scheduler.stats().steps == 1 + 5
    assert driver.scheduler.stats().drafted_tokens == driver.scheduler.stats().accepted_tokens == 20


def test_sequences_that_are_too_long_for_the_device_are_decoded_as_ever() -> None:
    """A draft model could not compute what it missed: that lies on the host."""
    memory = {"num_host_blocks": 200, "reads_host": True}
    driver = Driver.create(9, 4, device=Guessing, runner=memory, speculation=by_model())
    request = make_request("a", prompt(60), max_tokens=40)
    driver.add(request)
    driver.run()
    assert_complete(driver, request)
    assert driver.scheduler.stats().drafted_tokens == 0


@pytest.mark.parametrize("missed", [20, 2000])
def test_a_model_catches_up_where_that_pays(missed: int) -> None:
    """A token that was missed takes 10 ms, a step a second, of which drafts save a part for 30 tokens."""
    driver = Driver.create(801, 4, device=Guessing, speculation=by_model(4, replace(FREE, catching_up=1e-2)))
    request = make_request("a", prompt(missed), max_tokens=30)
    driver.add(request)
    driver.run()
    assert_complete(driver, request)
    assert (driver.scheduler.stats().drafted_tokens > 0) == (missed == 20)


def test_drafted_tokens_are_not_caught_up_again() -> None:
    """Half way to its end, nothing would make up for a whole prompt any more."""
    driver = Driver.create(801, 4, device=Guessing, speculation=by_model(4, replace(FREE, catching_up=1e-1)))
    request = make_request("a", prompt(200), max_tokens=60)
    driver.add(request)
    drafted = [driver.step().stats.drafted_tokens]
    while driver.busy:
        drafted.append(driver.step().stats.drafted_tokens)
    assert drafted[-1] > drafted[len(drafted) // 2] > 0


times = st.lists(st.integers(1, 60), min_size=1, max_size=6).map(
    lambda found: RowTimes([(4 * place + 1, found[place] / 1e3) for place in range(len(found))])
)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 20).map(lambda n: n / 20), st.booleans()), min_size=1, max_size=4
    ),
    st.builds(StepCosts, times, times, times),
    st.integers(0, 5),
)
def test_passes_are_part_of_the_cost(batch: list[tuple[int, float, bool]], costs: StepCosts, others: int) -> None:
    """Never slower than without; and the seconds are those of the passes, one by one."""
    offered, acceptances, by_model = ([each[part] for each in batch] for part in range(3))
    assert costs.drafting is not None
    chosen = choose_lengths(offered, acceptances, costs, others=others, by_model=by_model)
    speedup = expected_speedup(chosen, acceptances, costs, others=others, by_model=by_model)
    assert speedup >= 1.0
    if any(chosen):
        seconds = float(costs.ragged.seconds(len(batch) + sum(chosen) + others))
        for place in range(max(chosen)):
            rows = sum(k > place and guessed for k, guessed in zip(chosen, by_model, strict=True))
            seconds += float(costs.drafting.seconds(rows)) if rows else 0.0
        tokens = sum(expected_tokens(a, k) for a, k in zip(acceptances, chosen, strict=True))
        rate = tokens / seconds
        assert speedup == pytest.approx(rate / (len(batch) / costs.without_drafts(len(batch), others)), rel=1e-6)


def test_dear_passes_leave_what_a_grammar_forces() -> None:
    costs = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(64, 1.1)]), RowTimes([(1, 5.0)]))
    lengths = {
        guessed: choose_lengths([4, 4], [0.9, 0.9], costs, by_model=guessed)
        for guessed in product([True, False], repeat=2)
    }
    assert lengths == {
        (True, True): [0, 0],
        (True, False): [0, 4],
        (False, True): [4, 0],
        (False, False): [4, 4],
    }


@pytest.mark.parametrize("speculate", ["draft:demo-draft", "eagle:head"])
def test_a_runner_without_a_draft_model_is_asked_for_nothing(speculate: str) -> None:
    options = ModelOptions(model="demo", speculate=speculate)
    with pytest.raises(ValueError, match="the runner guesses nothing"):
        speculation_for(FakeRunner(9), options)
    found = speculation_for(Guessing(9), options)
    assert found is not None
    assert list(found.proposer.begin([1], [], b"").propose(3)) == [UNKNOWN] * 3
