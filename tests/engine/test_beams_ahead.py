"""A beam search sits out the plan that is made while its step is under way; every other sequence runs ahead."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_driver import Driver, expected_beams, expected_tokens, make_request
from fake_runner import DelayedRunner, FailingRunner, FakeRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from workloads import MixedPolicy, run_workload

from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.contract.step import StepPlan
from octavo_worker.memory.cost import PreemptionPolicy


class Plans(DelayedRunner):
    """Keeps what was launched."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.launched: list[StepPlan] = []

    def launch(self, plan):
        self.launched.append(plan)
        return super().launch(plan)


def plain(count: int, max_tokens: int) -> list[AddRequest]:
    return [make_request(str(i), range(10 * i, 10 * i + 9), max_tokens=max_tokens) for i in range(count)]


def search(width: int, max_tokens: int, **options: Any) -> AddRequest:
    return make_request("beams", range(700, 712), n=width, max_tokens=max_tokens, beam=BeamOptions(width), **options)


def run(driver: Driver, *requests: AddRequest) -> Driver:
    for request in requests:
        driver.add(request)
    driver.run()
    driver.runner.close()
    for request in requests:
        indices = range(len(request.sequences))
        got = [driver.tokens[request.id, i] for i in indices]
        beams = request.sampling.beam is not None
        assert got == (expected_beams(request) if beams else [expected_tokens(request, i) for i in indices])
    return driver


@pytest.mark.full(but=1)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_beam_search_beside_many_requests_stops_none_of_them_from_running_ahead(width):
    driver = Driver.create(2000, device=DelayedRunner, token_budget=2048, max_running=80)
    run(driver, *plain(63, 150), search(width, 60))
    assert driver.runner.launched_ahead == driver.runner.plans - 1


@pytest.mark.parametrize("width", [1, 3])
def test_a_search_is_in_every_other_step_and_the_others_in_each(width):
    driver = run(Driver.create(60, 4, device=Plans), search(width, 5), *plain(1, 20))
    decodes = [plan.num_decodes for plan in driver.runner.launched[2:]]
    assert decodes[:8] == [1 + width, 1] * 4
    assert set(decodes[8:]) == {1}


def test_a_search_alone_runs_one_step_after_the_other():
    driver = run(Driver.create(60, 4, device=DelayedRunner), search(3, 12))
    assert driver.runner.launched_ahead == 0


@pytest.mark.full(but=6)
@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("steps", range(4, 16))
def test_a_search_preempted_while_its_step_is_under_way_takes_that_step_again(mode, steps):
    driver = Driver.create(
        60, 4, device=DelayedRunner, max_running=5, runner={"num_host_blocks": 60}, policy=PreemptionPolicy(mode)
    )
    beams, other = search(3, 20, priority=2), make_request("other", range(10), max_tokens=30)
    driver.add(beams)
    driver.add(other)
    for _ in range(steps):
        driver.step()
    high = [make_request(f"high{i}", range(50 * i, 50 * i + 9), max_tokens=3, priority=0) for i in range(3)]
    run(driver, *high)
    assert driver.scheduler.stats().preemptions >= 3
    assert [driver.tokens["beams", i] for i in range(3)] == expected_beams(beams)
    assert driver.tokens["other", 0] == expected_tokens(other, 0)


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    usable_blocks=st.integers(6, 60),
    host_blocks=st.sampled_from([0, 6, 20, 300]),
    block_size=st.sampled_from([1, 2, 4, 16]),
    window=st.sampled_from([0, 0, 0, 5, 33]),
    mode=st.sampled_from(["swap", "recompute", "mixed"]),
)
def test_running_ahead_changes_no_token_of_any_mix(seed, usable_blocks, host_blocks, block_size, window, mode, device):
    """Beams, samples, greedy sequences, some with penalties, in pools that preempt and swap. What each workload must
    give is known without an engine, so what is equal to that with and without running ahead is equal to each other."""
    policy = MixedPolicy(random.Random(seed)) if mode == "mixed" else PreemptionPolicy(mode)
    memory = {"host_blocks": host_blocks, "window": window}
    sizes = {"usable_blocks": usable_blocks, "block_size": block_size}
    run_workload(seed, **sizes, **memory, policy=policy, device=device, beam_rate=0.4, count=15)


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 2**32), usable_blocks=st.integers(12, 60))
def test_failing_steps_change_no_token_of_beams(seed, usable_blocks):
    policy = PreemptionPolicy("swap")
    sizes = {"usable_blocks": usable_blocks, "block_size": 4, "host_blocks": 40}
    run_workload(seed, **sizes, policy=policy, device=FailingRunner, beam_rate=0.4)
