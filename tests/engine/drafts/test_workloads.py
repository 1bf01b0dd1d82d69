"""Everything at once, and drafts: preemptions, aborts, deadlines, samples, beams, takeovers, failed steps."""

from __future__ import annotations

import random
from typing import Any

import pytest
from drafted_runs import book
from engine_driver import Driver, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FailingRunner, FakeRunner, score
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proposers import AnswerBook, speculate
from tiers import examples
from workloads import MixedPolicy, run_workload

from octavo_worker.memory.cost import PreemptionPolicy

DEVICES = pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])


MEMORIES: dict[str, dict[str, Any]] = {
    "ample": {"usable_blocks": 400},
    "tight": {"usable_blocks": 60},
    "swap": {"usable_blocks": 60, "host_blocks": 80, "policy": PreemptionPolicy("swap")},
    "recompute": {"usable_blocks": 60, "host_blocks": 80, "policy": PreemptionPolicy("recompute")},
    "sliding": {"usable_blocks": 60, "window": 13},
    "oversized": {"usable_blocks": 40, "host_blocks": 200, "reads_host": True},
}


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("right", [0.0, 0.5, 1.0, None])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner, FailingRunner])
def test_no_token_tells_of_drafts(device: type[FakeRunner], memory: str, right: float | None) -> None:
    """Preemptions of both kinds, aborts, deadlines, samples, beams, takeovers, failed steps, and drafts."""
    proposer, preemptions = AnswerBook({}, right, seed=5), 0
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
        preemptions += driver.scheduler.stats().preemptions
    assert proposer.begun == proposer.closed > 0
    assert preemptions > 0 or memory == "ample"


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    right=st.sampled_from([0.0, 0.5, 0.8, 1.0, None]),
    most=st.integers(1, 9),
    block_size=st.sampled_from([1, 2, 4, 16]),
    tokens=st.sampled_from([240, 400, 2000]),
    hosts=st.sampled_from([0, 400]),
    reads_host=st.booleans(),
    window=st.sampled_from([0, 0, 9]),
    device=st.sampled_from([FakeRunner, DelayedRunner, FailingRunner]),
    most_samples=st.sampled_from([None, 12]),
)
def test_any_workload_with_any_guesses(
    seed: int,
    right: float | None,
    most: int,
    block_size: int,
    tokens: int,
    hosts: int,
    reads_host: bool,
    window: int,
    device: type[FakeRunner],
    most_samples: int | None,
) -> None:

    proposer = AnswerBook({}, right, seed)
    run_workload(
        seed,
        usable_blocks=tokens // block_size,
        block_size=block_size,
        host_blocks=hosts // block_size,
        reads_host=reads_host and hosts > 0,
        window=window,
        policy=MixedPolicy(random.Random(seed)),
        count=12,
        device=device,
        deadline_rate=0.1,
        speculation=speculate(proposer, most, most_samples=most_samples),
    )
    assert proposer.begun == proposer.closed


@DEVICES
def test_log_probabilities_come_with_their_tokens(device: type[FakeRunner]) -> None:
    request = make_request("a", prompt(9), max_tokens=30, logprobs=0)
    driver = Driver.create(60, 4, device=device, speculation=speculate(book(request, right=0.7), 4))
    driver.add(request)
    tokens, found = expected_tokens(request, 0), []
    while driver.busy:
        found += [token.logprob.logprob for token in driver.step().tokens if token.logprob is not None]
    driver.runner.close()
    assert found == [score([*prompt(9), *tokens[:i]], tokens[i]) for i in range(30)]
