"""Random workloads over few slots give the tokens of an engine without any: the fake model refuses a wrong state."""

from __future__ import annotations

import random

import pytest
from fake_runner import DelayedRunner, FailingRunner, FakeRunner
from guessing_runner import Guessing, GuessingAndFailing, GuessingLate
from hypothesis import given, settings
from hypothesis import strategies as st
from proposers import AnswerBook, speculate
from tiers import many_examples
from workloads import CHATS, MixedPolicy, run_preempted_chats, run_workload

from octavo_worker.engine.drafts import ModelProposer, RowTimes, Speculation, StepCosts
from octavo_worker.memory.cost import PreemptionPolicy

DEVICES = [FakeRunner, DelayedRunner, FailingRunner]


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("mode", ["swap", "recompute", "mixed"])
@pytest.mark.parametrize("device", DEVICES)
def test_preemptions_aborts_failures_and_chats_leave_every_token(mode: str, device: type[FakeRunner]) -> None:
    run_preempted_chats(mode, device, lambda seed: {"state_slots": 10 + 10 * seed, "host_state_slots": 20})


@settings(max_examples=many_examples(24, quick=12), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    usable_blocks=st.integers(6, 60),
    block_size=st.sampled_from([1, 2, 4, 16]),
    host_blocks=st.sampled_from([0, 6, 40, 300]),
    reads_host=st.booleans(),
    window=st.sampled_from([0, 0, 0, 5, 33]),
    slots=st.sampled_from([10, 11, 14, 40]),
    host_slots=st.sampled_from([0, 2, 4, 30]),
    mode=st.sampled_from(["swap", "recompute", "mixed"]),
    device=st.sampled_from(DEVICES),
)
def test_any_memory_gives_the_tokens_of_no_paging(
    seed, usable_blocks, block_size, host_blocks, reads_host, window, slots, host_slots, mode, device
):
    """Sequences slide, or are longer than the memory; the host has no room, or little."""
    policy = MixedPolicy(random.Random(seed)) if mode == "mixed" else PreemptionPolicy(mode)
    memory = {"host_blocks": host_blocks, "reads_host": reads_host, "window": window, "block_size": block_size}
    states = {"state_slots": slots, "host_state_slots": host_slots}
    run_workload(seed, usable_blocks=usable_blocks, policy=policy, device=device, **memory, **states, **CHATS)


@settings(max_examples=many_examples(16, quick=8), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    right=st.sampled_from([0.0, 0.5, 0.8, 1.0, None]),
    most=st.integers(1, 6),
    block_size=st.sampled_from([1, 4, 16]),
    slots=st.sampled_from([10, 11, 14, 20, 60]),
    host_slots=st.sampled_from([0, 20]),
    window=st.sampled_from([0, 0, 9]),
    device=st.sampled_from(DEVICES),
)
def test_no_token_tells_of_drafts(seed, right, most, block_size, slots, host_slots, window, device):
    """A verifying step writes no state but one behind each row; a sequence goes on from the last right one."""
    speculation = speculate(AnswerBook({}, right, seed=5), most)
    memory = {"usable_blocks": 400 // block_size, "block_size": block_size, "host_blocks": 60, "window": window}
    states = {"state_slots": slots, "host_state_slots": host_slots}
    policy = MixedPolicy(random.Random(seed))
    run_workload(seed, policy=policy, device=device, speculation=speculation, **memory, **states, **CHATS)


@pytest.mark.parametrize("device", [Guessing, GuessingLate, GuessingAndFailing])
def test_a_runner_guesses_drafts_and_leaves_some_out(device: type[Guessing]) -> None:
    """No sequence goes on from a state behind a row that was not computed."""
    costs = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4096, 1.0)]), RowTimes([(1, 1e-9)]))
    speculation = Speculation(ModelProposer(), costs, 3)
    states = {"state_slots": 40, "host_state_slots": 20}
    driver = run_workload(
        3, usable_blocks=100, block_size=4, host_blocks=60, device=device, speculation=speculation, **states, **CHATS
    )
    assert driver.scheduler.stats().accepted_tokens > 0
    assert driver.runner.left_out > 0
