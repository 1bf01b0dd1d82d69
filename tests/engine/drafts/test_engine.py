"""Speculation in the engine: whatever is guessed, the tokens are those of plain decoding, and what is right is fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_driver import Driver, assert_complete, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FailingRunner, FakeRunner, score
from proposers import AnswerBook, speculate
from workloads import MixedPolicy, run_workload, teach

from octavo_worker.engine.drafts import NgramProposer, RowTimes, StepCosts, SuffixProposer
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.messages import AddRequest, BeamOptions


def book(*requests: AddRequest, right: float | None = 1.0, **options: int) -> AnswerBook:
    found = AnswerBook({}, right)
    teach(found, requests, **options)
    return found


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
@pytest.mark.parametrize("most", [1, 3, 7])
def test_who_knows_all_gets_the_most_tokens_a_step(most: int, device: type[FakeRunner]) -> None:
    request = make_request("a", prompt(9), max_tokens=1 + 5 * (most + 1))
    driver = Driver.create(60, 4, device=device, speculation=speculate(book(request), most))
    driver.add(request)
    driver.run()
    driver.runner.close()
    assert_complete(driver, request)
    stats = driver.scheduler.stats()
    assert stats.steps == 1 + 5  # the prompt gives the first token
    assert stats.drafted_tokens == stats.accepted_tokens == 5 * most


def test_who_knows_nothing_costs_no_token() -> None:
    request = make_request("a", prompt(9), max_tokens=20)
    driver = Driver.create(60, 4, speculation=speculate(book(request, right=0.0)))
    driver.add(request)
    driver.run()
    assert_complete(driver, request)
    stats = driver.scheduler.stats()
    assert (stats.steps, stats.accepted_tokens) == (20, 0)
    assert stats.drafted_tokens > 0


MEMORIES: dict[str, dict[str, Any]] = {
    "ample": {"usable_blocks": 400},
    "tight": {"usable_blocks": 60},
    "swap": {"usable_blocks": 60, "host_blocks": 80, "policy": PreemptionPolicy("swap")},
    "recompute": {"usable_blocks": 60, "host_blocks": 80, "policy": PreemptionPolicy("recompute")},
    "sliding": {"usable_blocks": 60, "window": 13},
    "oversized": {"usable_blocks": 40, "host_blocks": 200, "reads_host": True},
}


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0, None])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner, FailingRunner])
def test_no_token_tells_of_drafts(device: type[FakeRunner], memory: str, right: float | None) -> None:
    """Preemptions of both kinds, aborts, deadlines, samples, beams, takeovers, failed steps, and drafts."""
    proposer = AnswerBook({}, right, seed=5)
    for seed in range(2):
        driver = run_workload(
            seed,
            block_size=4,
            device=device,
            deadline_rate=0.1,
            speculation=speculate(proposer, 1 + 4 * seed),
            **MEMORIES[memory],
        )
        assert driver.scheduler.stats().drafted_tokens > 0
    assert proposer.begun == proposer.closed > 0
