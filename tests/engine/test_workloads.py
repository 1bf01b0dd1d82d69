"""Random workloads over tiny pools give the tokens of an engine without paging, whatever is preempted or aborted."""

from __future__ import annotations

import random

import pytest
from engine_driver import Driver, expected_tokens, make_request
from fake_runner import DelayedRunner, FailingRunner, FakeRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiers import many_examples
from workloads import CONTEXT, MixedPolicy, check_tokens, random_request, run_workload

from octavo_worker.memory.cost import PreemptionPolicy


@pytest.mark.full(but=4)
@pytest.mark.parametrize("seed", range(12))
def test_tiny_pool_gives_the_tokens_of_no_paging(seed):
    driver = run_workload(seed, usable_blocks=16, block_size=8)
    assert driver.scheduler.stats().preemptions > 0
    assert driver.scheduler.stats().cached_tokens > 0


@settings(max_examples=many_examples(16), deadline=None)
@given(seed=st.integers(0, 2**32), usable_blocks=st.integers(4, 60), block_size=st.sampled_from([1, 2, 4, 16]))
def test_any_pool_gives_the_tokens_of_no_paging(seed, usable_blocks, block_size):
    run_workload(seed, usable_blocks=usable_blocks, block_size=block_size)


def test_prompts_that_hold_all_blocks_and_find_none_to_continue_give_way():
    run_workload(2, usable_blocks=8, block_size=4, window=16)


def test_a_request_fully_in_the_cache_leaves_nothing_on_the_host():
    """The last one comes back from the host without a copy and ends: no step follows that would settle anything."""
    run_workload(210, usable_blocks=6, block_size=16, host_blocks=6, policy=PreemptionPolicy("swap"))


@settings(max_examples=many_examples(16), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    usable_blocks=st.integers(6, 60),
    host_blocks=st.sampled_from([2, 6, 20, 300]),
    block_size=st.sampled_from([1, 2, 4, 16]),
    mode=st.sampled_from(["swap", "mixed"]),
    device=st.sampled_from([FakeRunner, DelayedRunner]),
)
def test_any_host_pool_gives_the_tokens_of_no_paging(seed, usable_blocks, host_blocks, block_size, mode, device):
    policy = MixedPolicy(random.Random(seed)) if mode == "mixed" else PreemptionPolicy("swap")
    sizes = {"usable_blocks": usable_blocks, "block_size": block_size, "host_blocks": host_blocks}
    run_workload(seed, **sizes, policy=policy, device=device)


@settings(max_examples=many_examples(24), deadline=None)
@example(539, 4, 6, 2, 0, "swap", FakeRunner)  # a block comes from the host and leaves for it in one step
@given(
    seed=st.integers(0, 2**32),
    usable_blocks=st.integers(4, 40),
    host_blocks=st.sampled_from([0, 6, 40, 300]),
    block_size=st.sampled_from([1, 2, 4, 16]),
    window=st.sampled_from([0, 1, 2, 5, 16, 33, 80]),
    mode=st.sampled_from(["swap", "recompute", "mixed"]),
    device=st.sampled_from([FakeRunner, DelayedRunner]),
)
def test_sliding_and_long_sequences_get_the_tokens_of_no_paging(
    seed, usable_blocks, host_blocks, block_size, window, mode, device
):
    policy = MixedPolicy(random.Random(seed)) if mode == "mixed" else PreemptionPolicy(mode)
    memory = {"host_blocks": host_blocks, "window": window, "reads_host": True}
    run_workload(seed, usable_blocks=usable_blocks, block_size=block_size, policy=policy, device=device, **memory)


@pytest.mark.parametrize("memory", [{"window": 20}, {"host_blocks": 150, "reads_host": True}], ids=["sliding", "long"])
def test_nothing_is_too_long_for_a_pool_much_smaller_than_the_context(memory):
    driver = run_workload(3, usable_blocks=9, block_size=8, policy=PreemptionPolicy("swap"), **memory)
    assert all("beams" in failed.message for failed in driver.failed.values())
    assert (driver.runner.cold_reads > 0) == ("reads_host" in memory)


MODES = [(FakeRunner, "mixed"), *((DelayedRunner, mode) for mode in ("none", "recompute", "swap", "mixed"))]


@pytest.mark.full
@pytest.mark.parametrize(("device", "mode"), MODES)
def test_500_requests_get_the_tokens_of_no_paging(device, mode):
    """Greedy or seeded, parallel samples and beams: with a large pool, and with each way of preemption; one step after
    the other, and one step ahead."""
    policy = MixedPolicy(random.Random(1)) if mode == "mixed" else PreemptionPolicy(mode if mode != "none" else "auto")
    driver = run_workload(
        2024,
        usable_blocks=2000 if mode == "none" else 45,
        block_size=8,
        host_blocks=80 if mode in ("swap", "mixed") else 0,
        policy=policy,
        count=500,
        abort_rate=0.0,
        max_running=512 if mode == "none" else 24,
        device=device,
    )
    if device is DelayedRunner:
        assert driver.runner.launched_ahead > 0.5 * driver.runner.plans
    stats = driver.scheduler.stats()
    assert not driver.failed
    assert (stats.preemptions > 100) == (mode != "none")
    assert (stats.swapped_out > 50) == (mode in ("swap", "mixed"))
    assert (stats.recomputed_tokens > 500) == (mode in ("recompute", "mixed"))


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_256_sequences_run_at_once_and_outgrow_the_pool(mode):
    driver = Driver.create(
        400,
        runner={"num_host_blocks": 400},
        policy=PreemptionPolicy(mode),
        max_running=256,
        token_budget=8192,
    )
    requests = [make_request(str(i), range(i, i + 15 + i % 3), max_tokens=20) for i in range(256)]
    for request in requests:
        driver.add(request)
    most = 0
    while driver.busy:
        driver.step()
        most = max(most, driver.scheduler.stats().running)
    assert most == 256
    assert driver.scheduler.stats().preemptions > 20
    assert all(driver.tokens[request.id, 0] == expected_tokens(request, 0) for request in requests)


@pytest.mark.full(but=2)
@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
@pytest.mark.parametrize("mode", ["recompute", "swap", "mixed"])
def test_long_prompts_aborts_and_deadlines_leave_the_others_their_tokens(mode, device):
    """Prompts of up to 330 tokens that share prefixes of several hundred; some are given up on, or late."""
    driver = run_workload(
        7,
        usable_blocks=32,
        block_size=16,
        host_blocks=80 if mode != "recompute" else 0,
        policy=MixedPolicy(random.Random(1)) if mode == "mixed" else PreemptionPolicy(mode),
        count=200,
        abort_rate=0.05,
        deadline_rate=0.2,
        max_running=12,
        beam_rate=0.1,
        device=device,
        context=400,
        longest_prefix=300,
    )
    stats = driver.scheduler.stats()
    assert stats.preemptions > 10
    assert (stats.swapped_out > 5) == (mode != "recompute")
    assert stats.cached_tokens > 2000
    assert any(failed.code == "deadline" for failed in driver.failed.values())


def test_failing_steps_change_no_token():
    """Steps are abandoned at random: what they would have written is computed again."""
    rng = random.Random(5)
    driver = Driver.create(
        24,
        8,
        runner={"max_model_len": CONTEXT, "num_host_blocks": 40},
        policy=PreemptionPolicy("swap"),
        token_budget=40,
        max_running=8,
    )
    prefixes = [[rng.randrange(50) for _ in range(40)]]
    requests = {str(i): random_request(rng, str(i), prefixes) for i in range(20)}
    for request in requests.values():
        driver.add(request)
    abandoned = 0
    while driver.scheduler.has_requests:
        if rng.random() < 0.2 and (plan := driver.scheduler.plan()) is not None:
            abandoned += 1
            driver.scheduler.abandon(plan)
            driver.scheduler.check_integrity()
        driver.step()
    assert abandoned > 10
    check_tokens(driver, requests, set())


@pytest.mark.full(but=1)
@pytest.mark.parametrize("seed", range(4))
def test_a_step_that_fails_takes_the_one_behind_it_along_and_costs_one_request(seed):
    """Blocks that both should have written hold nonsense that is never read, in the cache or on the host."""
    driver = run_workload(
        seed,
        usable_blocks=45,
        block_size=8,
        host_blocks=80,
        policy=PreemptionPolicy("swap"),
        count=100,
        max_running=24,
        device=FailingRunner,
    )
    assert driver.runner.failures > 5
    assert driver.runner.failures_with_one_behind > 3
    failed = [failed for failed in driver.failed.values() if failed.code == "step_failed"]
    assert 5 < len(failed) <= driver.runner.failures
