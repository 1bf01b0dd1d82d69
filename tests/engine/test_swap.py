"""Swapping: what leaves comes back as it was, nothing is reused too early, nothing stays behind."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import Driver, expected_beams, expected_tokens, make_request

from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.memory.cost import CostModel, PreemptionPolicy


def swapping(usable_blocks: int, host_blocks: int, **options: Any) -> Driver:
    return Driver.create(
        usable_blocks + 1,
        4,
        runner={"num_host_blocks": host_blocks + 1},
        policy=PreemptionPolicy("swap"),
        **options,
    )


def two_that_do_not_fit(driver: Driver, **second: Any) -> tuple[AddRequest, AddRequest]:
    """8 blocks: two prompts of 3 blocks each grow until the second is preempted. Stops then."""
    first = make_request("first", range(12), max_tokens=20)
    other = make_request("second", range(100, 112), **{"max_tokens": 20, **second})
    driver.add(first)
    driver.add(other)
    while driver.scheduler.stats().preemptions == 0:
        driver.step()
    return first, other


def test_a_swapped_sequence_comes_back_without_computing_anything_again():
    driver = swapping(8, 20)
    first, second = two_that_do_not_fit(driver)
    assert driver.scheduler.stats().swapped == 1
    computed = driver.runner.tokens_computed
    left = 40 - sum(len(tokens) for tokens in driver.tokens.values())
    driver.run()
    assert driver.tokens["first", 0] == expected_tokens(first, 0)
    assert driver.tokens["second", 0] == expected_tokens(second, 0)
    assert driver.runner.tokens_computed - computed == left, "one token computed for each that was missing"
    stats = driver.scheduler.stats()
    assert stats.recomputed_tokens == 0
    assert stats.restored_tokens == driver.resumed["second"].restored > 0
    assert "first" not in driver.resumed
    assert stats.host_free_blocks == stats.host_blocks == 20


def test_blocks_are_in_quarantine_until_the_copy_is_done():
    driver = swapping(8, 20)
    driver.add(make_request("first", range(12), max_tokens=20))
    driver.add(make_request("second", range(100, 112), max_tokens=20))
    while (plan := driver.scheduler.plan()) is not None and not plan.swap_out:
        driver.scheduler.commit(plan, driver.runner.launch(plan).result())
    assert driver.scheduler.pool.quarantined == len(plan.swap_out)
    leaving = {device for device, _ in plan.swap_out}
    assert not leaving & {block for step in plan.sequences for block in step.block_table}
    driver.scheduler.commit(plan, driver.runner.launch(plan).result())
    assert driver.scheduler.pool.quarantined == 0


def test_a_full_host_pool_means_recomputing():
    driver = swapping(8, 2)
    _, second = two_that_do_not_fit(driver)
    stats = driver.scheduler.stats()
    assert (stats.swapped_out, stats.recompute_host_full) == (0, 1)
    driver.run()
    assert driver.tokens["second", 0] == expected_tokens(second, 0)
    assert driver.scheduler.stats().recomputed_tokens > 0


@pytest.mark.parametrize("end", ["abort", "deadline"])
def test_a_swapped_sequence_that_ends_frees_its_host_blocks_within_a_step(end):
    now = 100.0
    driver = swapping(8, 20, clock=lambda: now)
    first, _ = two_that_do_not_fit(driver, deadline=200.0, priority=2)
    assert driver.scheduler.stats().host_free_blocks < 20
    if end == "abort":
        driver.scheduler.abort("second")
    else:
        now = 201.0
    driver.step()
    assert driver.scheduler.stats().host_free_blocks == 20
    assert driver.scheduler.stats().swapped == 0
    driver.run()
    assert driver.tokens["first", 0] == expected_tokens(first, 0)


def test_a_failed_step_with_a_swap_recomputes_both_who_left_and_who_ran():
    driver = swapping(8, 20)
    first = make_request("first", range(12), max_tokens=20)
    second = make_request("second", range(100, 112), max_tokens=20)
    driver.add(first)
    driver.add(second)
    while not (plan := driver.scheduler.plan()).swap_out:
        driver.scheduler.commit(plan, driver.runner.launch(plan).result())
        driver.record(driver.scheduler.take_output())
    driver.scheduler.abandon(plan)
    assert driver.scheduler.stats().swapped == 0
    driver.scheduler.check_integrity()
    driver.run()
    assert driver.tokens["first", 0] == expected_tokens(first, 0)
    assert driver.tokens["second", 0] == expected_tokens(second, 0)


def test_parallel_samples_leave_and_return_as_one_and_shared_blocks_are_copied_once():
    driver = swapping(14, 40)
    first = make_request("first", range(20), max_tokens=30)
    group = make_request("group", range(100, 120), n=4, max_tokens=12)
    driver.add(first)
    driver.add(group)
    held = 0
    while driver.scheduler.stats().preemptions == 0:
        held = len({b for s in driver.scheduler._requests.find("group").sequences.values() for b in s.table.blocks})
        driver.step()
    stats = driver.scheduler.stats()
    assert stats.swapped == 4
    assert 20 // 4 <= stats.host_blocks - stats.host_free_blocks <= held < 4 * 6
    while driver.scheduler.stats().swapped:
        assert driver.scheduler.stats().swapped == 4, "some came back without the others"
        driver.step()
    assert driver.scheduler.stats().shared_blocks >= 20 // 4, "what was shared is shared again"
    driver.run()
    for index in range(4):
        assert driver.tokens["group", index] == expected_tokens(group, index)


@pytest.mark.parametrize(("shared", "reason"), [(16, "recompute_cached"), (0, "swapped_out")])
def test_what_others_keep_is_no_reason_to_swap(shared: int, reason: str):
    """Moving five blocks costs as much as computing ten tokens; four of the five may be another's, too."""
    driver = Driver.create(
        13,
        4,
        runner={"num_host_blocks": 21},
        policy=PreemptionPolicy("auto", CostModel(block_bytes=1, link=1.0, prefill=1.0, latency=0.0)),
    )
    driver.add(make_request("first", range(17), max_tokens=24))
    driver.add(make_request("second", [*range(shared), *range(100, 117 - shared)], max_tokens=24))
    while driver.scheduler.stats().preemptions == 0:
        driver.step()
    assert getattr(driver.scheduler.stats(), reason) == 1
    driver.run()


def test_a_prefix_that_is_still_there_is_not_copied_back():
    driver = swapping(12, 20)
    prefix = list(range(16))
    first = make_request("first", [*prefix, 50], max_tokens=24)
    second = make_request("second", [*prefix, 60], max_tokens=24)
    driver.add(first)
    driver.add(second)
    driver.run()
    stats = driver.scheduler.stats()
    assert stats.swapped_out > 0
    assert stats.restored_tokens < stats.swapped_out * 16, "the shared blocks were never gone"
    assert driver.tokens["second", 0] == expected_tokens(second, 0)


def test_beams_are_swapped_as_one_and_end_as_if_never_disturbed():
    driver = swapping(16, 60)
    first = make_request("first", range(20), max_tokens=40)
    beams = make_request("beams", range(100, 120), n=4, max_tokens=16, beam=BeamOptions(4))
    driver.add(first)
    driver.add(beams)
    while driver.scheduler.stats().preemptions == 0:
        driver.step()
    assert driver.scheduler.stats().swapped == 4
    driver.run()
    assert [driver.tokens["beams", i] for i in range(4)] == expected_beams(beams)


def continued(id: str, outputs: int, **options: Any) -> AddRequest:
    """Four samples of a prompt of ten blocks, taken over when each had `outputs` tokens."""
    fresh = make_request(id, range(100, 140), n=4, **options)
    published = {index: expected_tokens(fresh, index)[:outputs] for index in range(4)}
    return make_request(id, range(100, 140), published=published, **options)


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_group_amid_its_prompts_leaves_and_returns_with_what_is_computed(steps: int):
    """Samples that wait for a sibling to compute their common prompt have nothing to take along yet."""
    driver = swapping(40, 100, token_budget=9, max_running=8)
    group = continued("group", 8, max_tokens=20)
    driver.add(group)
    for _ in range(steps):
        driver.step()
    urgent = make_request("urgent", range(500, 500 + 130), max_tokens=2, priority=0)
    driver.add(urgent)
    driver.run()
    stats = driver.scheduler.stats()
    assert stats.swapped_out == 4
    assert driver.resumed["group"].recomputed == stats.recomputed_tokens == 0
    assert driver.runner.tokens_computed == 131 + 40 + 4 * 19, "the prompt once, though four continue it"
    for index in range(4):
        assert driver.tokens["group", index] == expected_tokens(group, index)
    assert stats.host_free_blocks == 100


def test_a_sequence_back_amid_its_prompt_finds_what_others_computed_unless_it_scores_it():
    computed = {}
    for wanted in (None, 0):
        driver = swapping(40, 100, token_budget=9, max_running=8)
        first = make_request("first", range(140), max_tokens=2, priority=2, prompt_logprobs=wanted)
        driver.add(first)
        for _ in range(4):
            driver.step()
        driver.add(make_request("urgent", range(130), max_tokens=2, priority=0))
        driver.run()
        assert driver.scheduler.stats().swapped_out == 1
        assert driver.tokens["first", 0] == expected_tokens(first, 0)
        computed[wanted] = driver.runner.tokens_computed
        if wanted is not None:
            assert len(driver.started["first"].prompt_logprobs) == 140
    assert computed[None] < computed[0] - 80


@pytest.mark.parametrize("steps", range(1, 6))
def test_samples_that_wait_for_one_that_is_aborted_compute_what_it_was_to_fill(steps: int):
    driver = swapping(40, 100, token_budget=9, max_running=8)
    group = continued("group", 8, max_tokens=20)
    driver.add(group)
    for _ in range(steps):
        driver.step()
    driver.scheduler.abort("group", 0)
    driver.run()
    for index in range(1, 4):
        assert driver.tokens["group", index] == expected_tokens(group, index)


@pytest.mark.parametrize("steps", range(1, 8))
def test_beams_that_compute_again_may_leave_again(steps: int):
    """Recomputed after a failed step, swapped before the last of them is done."""
    driver = swapping(40, 100, token_budget=9, max_running=8)
    beams = make_request("beams", range(100, 130), n=4, max_tokens=12, beam=BeamOptions(4))
    driver.add(beams)
    for _ in range(8):
        driver.step()
    plan = driver.scheduler.plan()
    assert plan is not None
    driver.scheduler.abandon(plan)
    for _ in range(steps):
        driver.step()
    driver.add(make_request("urgent", range(500, 500 + 130), max_tokens=2, priority=0))
    driver.run()
    assert driver.scheduler.stats().swapped_out > 0
    assert [driver.tokens["beams", i] for i in range(4)] == expected_beams(beams)


def test_beams_that_no_memory_can_hold_fail_and_say_so():
    driver = swapping(10, 60)
    driver.add(make_request("beams", range(20), n=4, max_tokens=60, beam=BeamOptions(4)))
    driver.run()
    assert driver.failed["beams"].code == "pool_too_small"
    assert "4 beams" in driver.failed["beams"].message


def test_a_sequence_that_comes_back_stays_for_a_block_at_least():
    """Hysteresis: with every preemption and return the victims get a block's worth of tokens done."""
    driver = swapping(24, 200)
    for i in range(6):
        driver.add(make_request(str(i), range(100 * i, 100 * i + 8), max_tokens=60))
    driver.run()
    stats = driver.scheduler.stats()
    assert stats.preemptions > 5
    assert stats.generated_tokens == 6 * 60
    assert stats.preemptions <= stats.generated_tokens / 4
