"""Sequences that slide, and sequences that are longer than the device's memory."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import Driver, expected_tokens, make_request
from fake_runner import FakeRunner

from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.contract.step import StepPlan
from octavo_worker.memory.cost import PreemptionPolicy


def sliding(usable_blocks: int, window: int, **options: Any) -> Driver:
    return Driver.create(usable_blocks + 1, 4, runner={"window": window}, **{"token_budget": 33} | options)


def spilling(usable_blocks: int, host_blocks: int, *, mode: str = "swap", **options: Any) -> Driver:
    return Driver.create(
        usable_blocks + 1,
        4,
        runner={"num_host_blocks": host_blocks + 1, "reads_host": True},
        policy=PreemptionPolicy(mode),  # type: ignore[arg-type]
        **options,
    )


def run(driver: Driver, *requests: AddRequest) -> int:
    """To the end, every token checked. Returns the most device blocks that were in use."""
    most = 0
    for request in requests:
        driver.add(request)
    while driver.scheduler.has_requests or driver.scheduler.has_output:
        driver.step()
        most = max(most, driver.scheduler.pool.used)
    for request in requests:
        for sequence in request.sequences:
            expected = expected_tokens(request, sequence.index, window=driver.runner.window)
            assert driver.tokens[request.id, sequence.index] == expected
    host = driver.scheduler.kv.host
    assert driver.scheduler.pool.used == 0
    assert host is None or host.pool.available == host.pool.total
    return most


# Sliding


def test_a_sequence_of_many_windows_runs_in_the_memory_of_one():
    most = run(sliding(6, window=9), make_request("a", range(300), max_tokens=300))
    assert most <= 6


def test_the_prompt_takes_a_window_and_a_chunk_even_if_more_is_free():
    assert run(sliding(500, window=9), make_request("a", range(300), max_tokens=1)) == (9 + 33) // 4 + 1
    assert run(sliding(500, window=9), make_request("a", range(3), max_tokens=300)) == 8 // 4 + 1


def test_samples_share_their_window_and_leave_it_one_by_one():
    assert run(sliding(100, window=16), make_request("a", range(200), n=4, max_tokens=40)) <= 6 + 4 * 5


def test_a_window_that_the_pool_cannot_hold_is_as_good_as_none():
    driver = sliding(4, window=18)
    driver.add(make_request("a", range(20)))
    driver.step()
    assert driver.failed["a"].code == "pool_too_small"
    run(driver, make_request("b", range(10), max_tokens=5))


def test_blocks_that_left_the_window_are_found_again_while_nobody_needs_them():
    driver = sliding(100, window=9)
    first = make_request("a", range(100), max_tokens=1)
    run(driver, first)
    run(driver, make_request("b", range(60), max_tokens=1))
    assert driver.started["b"].cached_tokens == 56


def test_a_sliding_prompt_sits_out_while_decodes_have_the_memory():
    driver = sliding(12, window=16, max_running=4)
    run(driver, make_request("a", range(12), max_tokens=60, n=3), make_request("b", range(100, 200), max_tokens=9))


# Long


def test_a_prompt_of_five_pools_runs_on_half_of_one():
    driver = spilling(10, 60)
    assert run(driver, make_request("a", range(200), max_tokens=30)) <= 5
    assert driver.runner.cold_reads > 0
    assert not driver.failed


def test_what_is_cached_outlives_a_prompt_that_passes_through():
    driver = spilling(10, 60)
    run(driver, make_request("before", range(500, 509), max_tokens=1))
    run(driver, make_request("long", range(200), max_tokens=30))
    run(driver, make_request("again", range(500, 509), max_tokens=1))
    assert driver.started["again"].cached_tokens == 8


def test_what_is_computed_is_never_computed_again():
    driver = spilling(10, 60)
    run(driver, make_request("a", range(200), max_tokens=30))
    assert driver.runner.tokens_computed == 229


def test_a_sequence_that_grows_out_of_the_device_goes_on():
    driver = spilling(10, 60)
    run(driver, make_request("a", range(4), max_tokens=200))
    assert driver.runner.cold_reads > 0


def test_samples_share_what_is_on_the_host():
    driver = spilling(24, 40)
    run(driver, make_request("a", range(120), n=3, max_tokens=12))
    assert driver.runner.tokens_computed == 120 + 3 * 11
    assert driver.runner.blocks_swapped < 45, "a shared block left more than once"


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_short_requests_run_beside_a_long_one_and_pass_a_second(mode):
    driver = spilling(20, 120, mode=mode)
    long = [make_request(name, range(start, start + 150), max_tokens=60) for name, start in (("x", 0), ("y", 200))]
    short = [make_request(str(i), range(i, i + 9), max_tokens=12) for i in range(10)]
    for request in [*long, *short]:
        driver.add(request)
    while not all((request.id, 0) in driver.reasons for request in short):
        driver.step()
        assert ("x", 0) not in driver.reasons, "they waited for the first"
        assert not driver.tokens["y", 0], "two long ones at a time"
    run(driver)
    assert driver.tokens["y", 0] == expected_tokens(long[1], 0)


def test_a_long_sequence_is_preempted_by_a_high_class_and_comes_back():
    driver = spilling(10, 100)
    long = make_request("long", range(200), max_tokens=30, priority=2)
    driver.add(long)
    while len(driver.tokens["long", 0]) < 5:
        driver.step()
    computed = driver.runner.tokens_computed
    urgent = make_request("urgent", range(500, 530), max_tokens=8, priority=0)
    run(driver, urgent)
    assert driver.resumed["long"].recomputed == 0
    assert driver.tokens["long", 0] == expected_tokens(long, 0)
    assert driver.runner.tokens_computed == computed + 37 + 25


def test_it_takes_the_host_from_those_that_wait_there():
    driver = spilling(16, 60)
    others = [make_request(str(i), range(10 * i, 10 * i + 12), max_tokens=40) for i in range(4)]
    for request in others:
        driver.add(request)
    for _ in range(25):
        driver.step()
    long = make_request("long", range(150), max_tokens=56, priority=0)
    driver.add(long)
    driver.run(max_steps=400)
    stats = driver.scheduler.stats()
    assert stats.recompute_host_full == 0, "all were swapped"
    assert stats.recomputed_tokens > 0, "and some lost what they had there"
    for request in (long, *others):
        assert driver.tokens[request.id, 0] == expected_tokens(request, 0)


def test_more_than_device_and_host_together_is_refused_with_both_sizes():
    driver = spilling(10, 20)
    driver.add(make_request("a", range(101)))
    driver.add(make_request("b", range(90), max_tokens=30))
    driver.run()
    for name in "ab":
        assert driver.failed[name].code == "pool_too_small"
        for part in ("40 tokens on the device", "80 on the host", "--swap-memory", "--kv-memory"):
            assert part in driver.failed[name].message


def test_the_longest_sequence_that_is_accepted_runs():
    run(spilling(10, 20), make_request("a", range(90), max_tokens=10))


def test_without_a_runner_that_reads_the_host_it_is_refused():
    driver = Driver.create(11, 4, runner={"num_host_blocks": 61})
    driver.add(make_request("a", range(60)))
    driver.step()
    assert driver.failed["a"].code == "pool_too_small"


class Reading(FakeRunner):
    """Remembers which host blocks the latest step read."""

    read = 0

    def launch(self, plan: StepPlan):
        blocks = {block for step in plan.sequences for block in step.block_table}
        self.read = sum(block >= self.first_host_block for block in blocks)
        return super().launch(plan)


def test_statistics_count_what_running_sequences_read_on_the_host_each_block_once():
    driver = spilling(10, 60, device=Reading)
    driver.add(make_request("a", range(60), n=2, max_tokens=9))
    most = 0
    while driver.busy:
        driver.step()
        stats = driver.scheduler.stats()
        assert stats.cold_blocks == (driver.runner.read if stats.running else 0)
        most = max(most, stats.cold_blocks)
    assert most > 60 // 4 - 10
    assert stats.cold_blocks == 0


def test_beams_are_never_oversized():
    driver = spilling(10, 60)
    driver.add(make_request("a", range(60), n=2, max_tokens=5, beam=BeamOptions(2)))
    driver.step()
    assert driver.failed["a"].code == "pool_too_small"
    assert "40 tokens for beams" in driver.failed["a"].message


@pytest.mark.parametrize("end", ["abort", "deadline", "failure"])
@pytest.mark.parametrize("tokens", [0, 3])
def test_both_sides_are_free_however_it_ends(end, tokens):
    now = 100.0
    driver = spilling(10, 60, clock=lambda: now)
    driver.add(make_request("a", range(200), max_tokens=30, deadline=200.0))
    while driver.scheduler.kv.host.pool.used < 5 or len(driver.tokens["a", 0]) < tokens:
        driver.step()
    if end == "abort":
        driver.scheduler.abort("a")
    elif end == "deadline":
        now = 201.0
    else:
        driver.scheduler.abandon(driver.scheduler.plan(), culprit=0, message="no")
    driver.step()
    driver.scheduler.check_integrity()
    assert driver.scheduler.pool.used == driver.scheduler.kv.host.pool.used == 0


def test_a_failed_step_starts_it_over():
    driver = spilling(10, 60)
    request = make_request("a", range(100), max_tokens=10)
    driver.add(request)
    while not driver.tokens["a", 0]:
        driver.step()
    driver.scheduler.abandon(driver.scheduler.plan())
    assert driver.scheduler.kv.host.pool.used == 0
    run(driver)
    assert driver.tokens["a", 0] == expected_tokens(request, 0)


@pytest.mark.parametrize(
    ("capacity", "longest", "enough"),
    [
        (Capacity(10, 4), 40, 10),
        (Capacity(10, 4, host=20), 100, 5),
        (Capacity(10, 4, host=2), 40, 5),
        (Capacity(1, 4, host=20), 84, 1),
        (Capacity(10, 4, window=9), None, 10),
        (Capacity(100, 4, window=9), None, 11),
        (Capacity(10, 4, host=20, window=9), None, 10),
        (Capacity(10, 4, host=20, window=90), 100, 5),
        (Capacity(10, 4, window=1), None, 9),
    ],
)
def test_capacity(capacity, longest, enough):
    assert capacity.longest == longest
    assert capacity.bound(32) == enough


def test_blocks_that_a_returning_sequence_leaves_on_the_host_are_not_overwritten_before_they_are_read():
    """Both in one step: one comes back, and the long one behind it sends its oldest blocks to the host."""
    now = 0.0
    driver = spilling(14, 60, clock=lambda: now, aging_s=10.0, token_budget=40, max_running=8)
    first = make_request("first", range(300, 320), max_tokens=30)
    driver.add(first)
    for _ in range(6):
        driver.step()
    driver.add(make_request("filler", range(600, 640), max_tokens=6, priority=0))
    while not driver.scheduler.stats().swapped:
        driver.step()
    long = make_request("long", range(100, 300), max_tokens=5)
    driver.add(long)
    driver.step()
    now = 11.0  # the first has waited and goes before the long one
    both = 0
    while driver.busy:
        away, cold = driver.scheduler.stats().swapped, driver.scheduler.stats().cold_blocks
        driver.step()
        both += driver.scheduler.stats().swapped < away and driver.scheduler.stats().cold_blocks > cold
    assert both > 0
    assert driver.tokens["first", 0] == expected_tokens(first, 0)
    assert driver.tokens["long", 0] == expected_tokens(long, 0)
