"""Random workloads over two groups of blocks give the tokens of an engine without paging: each token hashes what both
tables hold."""

from __future__ import annotations

import random

import pytest
from fake_runner import DelayedRunner, FailingRunner, FakeRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from proposers import AnswerBook, speculate
from slab_sizes import shared_memory
from tiers import many_examples
from workloads import CHATS, MixedPolicy, run_preempted_chats, run_workload

from octavo_worker.contract.capacity import Capacity
from octavo_worker.memory.cost import PreemptionPolicy

DEVICES = [FakeRunner, DelayedRunner, FailingRunner]


def least_blocks(window: int, block_size: int) -> int:
    """Blocks of the second group with which one sequence runs, and the null block."""
    return 1 + Capacity(1, block_size, window=window).sliding_blocks(1)


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("mode", ["swap", "recompute", "mixed"])
@pytest.mark.parametrize("device", DEVICES)
def test_preemptions_aborts_failures_and_chats_leave_every_token(mode: str, device: type[FakeRunner]) -> None:
    windows = {"host_window_blocks": 40, "layer_window": 20}
    run_preempted_chats(mode, device, lambda seed: {"window_blocks": 14 + 5 * seed, **windows})


@settings(max_examples=many_examples(24, quick=10), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    usable_blocks=st.integers(6, 60),
    block_size=st.sampled_from([1, 2, 4, 16]),
    more=st.sampled_from([0, 1, 3, 10, 40]),
    host_blocks=st.sampled_from([(0, 0), (6, 40), (40, 3), (300, 300)]),
    reads_host=st.booleans(),
    window=st.sampled_from([2, 3, 5, 9, 33]),
    slots=st.sampled_from([0, 0, 10, 14, 40]),
    mode=st.sampled_from(["swap", "recompute", "mixed"]),
    device=st.sampled_from(DEVICES),
)
@example(4, 9, 4, 0, (300, 300), True, 5, 0, "swap", DelayedRunner)  # longer than the memory, and sliding beside it
def test_any_memory_gives_the_tokens_of_no_paging(
    seed, usable_blocks, block_size, more, host_blocks, reads_host, window, slots, mode, device
):
    policy = MixedPolicy(random.Random(seed)) if mode == "mixed" else PreemptionPolicy(mode)
    windows = least_blocks(window, block_size) + more
    memory = {"window_blocks": windows, "host_window_blocks": host_blocks[1], "layer_window": window}
    memory |= {"reads_host": reads_host, "state_slots": slots, "host_state_slots": 20 if slots else 0}
    sizes = {"usable_blocks": usable_blocks, "block_size": block_size, "host_blocks": host_blocks[0]}
    run_workload(seed, policy=policy, device=device, **sizes, **memory, **CHATS)


@settings(max_examples=many_examples(24, quick=10), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    for_one=st.integers(6, 40),
    block_size=st.sampled_from([1, 4, 16]),
    each=st.sampled_from([(1, 1), (3, 1), (5, 1), (5, 2), (26, 5)]),
    host_blocks=st.sampled_from([(0, 0), (6, 40), (300, 300)]),
    reads_host=st.booleans(),
    window=st.sampled_from([2, 5, 9, 33]),
    slots=st.sampled_from([0, 0, 14]),
    mode=st.sampled_from(["swap", "recompute", "mixed"]),
    device=st.sampled_from(DEVICES),
)
def test_any_memory_that_groups_share_gives_the_same_tokens(
    seed, for_one, block_size, each, host_blocks, reads_host, window, slots, mode, device
):
    """The fake model reads nothing where the other group has written."""
    policy = MixedPolicy(random.Random(seed)) if mode == "mixed" else PreemptionPolicy(mode)
    blocks, memory = shared_memory(for_one, window, block_size, each)
    memory |= {"host_window_blocks": host_blocks[1], "reads_host": reads_host}
    memory |= {"state_slots": slots, "host_state_slots": 20 if slots else 0}
    sizes = {"usable_blocks": blocks - 1, "block_size": block_size, "host_blocks": host_blocks[0]}
    run_workload(seed, policy=policy, device=device, **sizes, **memory, **CHATS)


@settings(max_examples=many_examples(16, quick=8), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    right=st.sampled_from([0.0, 0.5, 0.8, 1.0, None]),
    most=st.integers(1, 6),
    block_size=st.sampled_from([1, 4, 16]),
    more=st.sampled_from([0, 2, 20]),
    window=st.sampled_from([2, 9]),
    slots=st.sampled_from([0, 14]),
    device=st.sampled_from(DEVICES),
)
def test_no_token_tells_of_drafts(seed, right, most, block_size, more, window, slots, device):
    """Drafts take free blocks of both groups, and give them back."""
    speculation = speculate(AnswerBook({}, right, seed=5), most)
    memory = {"usable_blocks": 400 // block_size, "block_size": block_size, "host_blocks": 60}
    memory |= {"window_blocks": least_blocks(window, block_size) + more, "host_window_blocks": 40}
    memory |= {"layer_window": window, "state_slots": slots}
    policy = MixedPolicy(random.Random(seed))
    run_workload(seed, policy=policy, device=device, speculation=speculation, **memory, **CHATS)


def test_a_prompt_goes_on_in_the_blocks_that_are_there() -> None:
    """Windows of two blocks, of which there are three."""
    memory = {"window_blocks": 4, "layer_window": 2}
    run_workload(10, usable_blocks=60, block_size=16, device=DelayedRunner, **memory, **CHATS | {"chat_rate": 0.3})
