"""Slots that steps read, write and keep: in place, or another one where others need what is there."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import Driver, assert_complete, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FakeRunner
from guessing_runner import Guessing
from proposers import AnswerBook, speculate

from octavo_worker.contract.messages import BeamOptions, PinPrefix
from octavo_worker.contract.state import StateMove
from octavo_worker.contract.step import StepPlan
from octavo_worker.engine.drafts import ModelProposer, RowTimes, Speculation, StepCosts
from octavo_worker.memory.cost import CostModel, PreemptionPolicy

SIZE = 8


def engine(
    device: type[FakeRunner] = FakeRunner, *, blocks: int = 200, **options: Any
) -> tuple[Driver, list[StepPlan]]:
    """An engine, and the plans that its runner gets."""
    runner = {"state_slots": 20} | options.pop("runner", {})
    driver, plans = Driver.create(blocks, SIZE, device=device, runner=runner, **options), list[StepPlan]()
    launch = driver.runner.launch

    def noting(plan: StepPlan) -> Any:
        plans.append(plan)
        return launch(plan)

    driver.runner.launch = noting
    return driver, plans


def moves(plan: StepPlan) -> list[StateMove]:
    return [step.state for step in plan.sequences if step.state is not None]


def run_all(driver: Driver) -> None:
    """Until nothing is left but pins."""
    while driver.busy:
        driver.step()


def test_a_sequence_begins_with_zeros_and_is_advanced_in_place() -> None:
    driver, plans = engine(token_budget=5)
    driver.add(make_request("a", prompt(12), max_tokens=4))
    driver.run()
    reads, writes = [[getattr(moves(plan)[0], name) for plan in plans] for name in ("read", "write")]
    assert reads[0] == 0
    assert len({*reads[1:], *writes}) == 1
    assert writes[0] > 0


def test_samples_that_part_leave_what_they_share() -> None:
    """The parent, too: no slot is read by one and written by another."""
    driver, plans = engine()
    driver.add(make_request("a", prompt(12), n=3, max_tokens=4))
    driver.run()
    prompts, first, second, *_ = [moves(plan) for plan in plans]
    shared = prompts[0].write
    assert [move.read for move in first] == [shared] * 3
    assert len({move.write for move in first} | {shared}) == 4
    assert all(move.read == move.write for move in second)


def test_a_snapshot_is_read_and_never_written() -> None:
    driver, plans = engine()
    for name in ("a", "b"):
        driver.add(make_request(name, prompt(20), max_tokens=3))
        driver.run()
    (kept,) = [slot for plan in plans for move in moves(plan) for _, slot in move.keeps]
    begin = next(i for i, plan in enumerate(plans) if moves(plan)[0].read == kept)
    assert moves(plans[begin])[0].write != kept
    assert all(move.write != kept for plan in plans[begin:] for move in moves(plan))


def test_a_step_that_verifies_writes_no_live_slot_and_keeps_one_behind_each_row() -> None:
    request = make_request("a", prompt(12), max_tokens=9)
    book = AnswerBook({tuple(request.prompt): [expected_tokens(request, 0)]}, 1.0)
    driver, plans = engine(speculation=speculate(book, 3))
    driver.add(request)
    driver.run()
    verifying = [plan for plan in plans if any(step.drafts for step in plan.sequences)]
    assert verifying
    for plan in verifying:
        (move,), (step,) = moves(plan), plan.sequences
        assert move.write == 0
        assert [after for after, _ in move.keeps] == list(range(1, 1 + len(step.tokens)))
        following = plans[plans.index(plan) + 1 :]
        if following:
            assert moves(following[0])[0].read == move.keeps[-1][1], "all drafts are right"
    assert_complete(driver, request)


def test_samples_part_before_they_verify_drafts() -> None:
    """Each has a slot of its own first: what they share is left with their first tokens."""
    request = make_request("a", prompt(12), n=2, max_tokens=9)
    book = AnswerBook({tuple(request.prompt): [expected_tokens(request, i) for i in range(2)]}, 1.0)
    driver, plans = engine(speculation=speculate(book, 3))
    driver.add(request)
    driver.run()
    drafted = [[len(step.drafts) for step in plan.sequences] for plan in plans]
    assert drafted[:2] == [[0], [0, 0]]
    assert any(map(sum, drafted))
    assert_complete(driver, request)


def test_a_sequence_that_ends_amid_its_drafts_leaves_the_state_of_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of a runner go on behind the token that stops it, and are no part of it."""
    monkeypatch.setattr(Guessing, "right", 1.0)
    plain = make_request("plain", prompt(12), max_tokens=9)
    said = expected_tokens(plain, 0)
    request = make_request("a", prompt(12), max_tokens=9, stop_token_ids=[said[2]])
    costs = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4096, 1.0)]), RowTimes([(1, 1e-9)]))
    driver, plans = engine(Guessing, speculation=Speculation(ModelProposer(), costs, 7))
    driver.add(request)
    driver.run()
    assert driver.tokens["a", 0] == said[:3]
    assert max(len(step.drafts) for plan in plans for step in plan.sequences) > 0
    following = make_request("b", [*request.prompt, *said[:3], 901], max_tokens=3)
    driver.add(following)
    driver.run()
    assert driver.started["b"].cached_tokens == 12 + 2
    assert_complete(driver, following)


def test_a_sequence_that_ends_while_its_step_runs_is_found_when_that_has_landed() -> None:
    driver, _ = engine()
    states = driver.scheduler.kv.states
    assert states is not None
    driver.add(make_request("a", prompt(5), max_tokens=3))
    plan = driver.scheduler.plan()
    assert plan is not None
    driver.scheduler.abort("a")
    assert (states.pool.used, states.pool.cached, len(states.snapshots.coming)) == (1, 0, 1)
    driver.scheduler.abandon(plan)
    assert (states.pool.used, states.pool.cached) == (0, 0)


def test_without_free_slots_there_are_no_drafts() -> None:
    requests = [make_request(str(i), prompt(12, 40 * i), max_tokens=9) for i in range(4)]
    book = AnswerBook({tuple(r.prompt): [expected_tokens(r, 0)] for r in requests}, 1.0)
    driver, _ = engine(speculation=speculate(book, 3), runner={"state_slots": 6})
    for request in requests:
        driver.add(request)
    while driver.busy and driver.scheduler.stats().running < 4:
        driver.step()
    states = driver.scheduler.kv.states
    assert states is not None
    assert states.pool.available == 1
    drafted = driver.scheduler.stats().drafted_tokens
    for _ in range(3):
        driver.step()
        assert driver.scheduler.stats().running == 4
    assert driver.scheduler.stats().drafted_tokens == drafted
    driver.run()
    assert_complete(driver, *requests)


def test_a_step_that_failed_takes_its_keeps_back() -> None:
    driver, _ = engine()
    states = driver.scheduler.kv.states
    assert states is not None
    driver.add(make_request("a", prompt(20), max_tokens=3))
    plan = driver.scheduler.plan()
    assert plan is not None
    assert [after for move in moves(plan) for after, _ in move.keeps] == [16]
    assert states.pool.used == 2
    driver.scheduler.abandon(plan)
    assert (states.pool.used, states.pool.cached, states.snapshots.coming) == (0, 0, {})
    driver.run()


def test_a_state_can_be_found_when_its_step_has_landed() -> None:
    driver, _ = engine()
    states = driver.scheduler.kv.states
    assert states is not None
    driver.add(make_request("a", prompt(20), max_tokens=3))
    plan = driver.scheduler.plan()
    assert plan is not None
    assert states.pool.cached == 0
    assert len(states.snapshots.coming) == 1
    driver.scheduler.commit(plan, driver.runner.launch(plan).result())
    assert (states.pool.cached, states.snapshots.coming) == (1, {})
    driver.scheduler.abort("a")


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_samples_that_share_a_state_move_it_once(device: type[FakeRunner]) -> None:
    runner = {"num_host_blocks": 60, "host_state_slots": 9}
    driver, plans = engine(device, blocks=13, runner=runner, policy=PreemptionPolicy("swap"))
    requests = [
        make_request("first", prompt(24), max_tokens=40, priority=0),
        make_request("second", prompt(24, 300), n=3, max_tokens=2, priority=2),
    ]
    for request in requests:
        driver.add(request)
    driver.run()
    assert_complete(driver, *requests)
    out = [pair for plan in plans for pair in plan.state_out]
    assert len(out) == len(set(out))
    driver.runner.close()


def test_states_that_find_no_room_on_the_host_are_computed_again() -> None:
    runner = {"num_host_blocks": 100, "host_state_slots": 2}
    driver, _ = engine(blocks=14, runner=runner, policy=PreemptionPolicy("swap"))
    requests = [make_request(str(i), prompt(20, 100 * i), max_tokens=40) for i in range(4)]
    for request in requests:
        driver.add(request)
    driver.run()
    stats = driver.scheduler.stats()
    assert stats.swapped_out > 0
    assert stats.recompute_host_full > 0
    assert_complete(driver, *requests)


def test_without_slots_on_the_host_nothing_is_swapped() -> None:
    driver, _ = engine(blocks=12, runner={"num_host_blocks": 100}, policy=PreemptionPolicy("swap"))
    requests = [make_request(str(i), prompt(20, 100 * i), max_tokens=40) for i in range(3)]
    for request in requests:
        driver.add(request)
    driver.run()
    stats = driver.scheduler.stats()
    assert (stats.swapped_out, stats.host_states) == (0, 0)
    assert stats.recompute_no_swap > 0
    assert_complete(driver, *requests)


@pytest.mark.parametrize(("state_bytes", "swaps"), [(0, True), (1 << 30, False)])
def test_a_large_state_is_computed_again_rather_than_moved(state_bytes: int, swaps: bool) -> None:
    costs = CostModel(block_bytes=1 << 10, link=1e9, prefill=1e4, latency=0.0, state_bytes=state_bytes)
    runner = {"num_host_blocks": 100, "host_state_slots": 9}
    driver, _ = engine(blocks=12, runner=runner, policy=PreemptionPolicy("auto", costs))
    requests = [make_request(str(i), prompt(20, 100 * i), max_tokens=40) for i in range(3)]
    for request in requests:
        driver.add(request)
    driver.run()
    stats = driver.scheduler.stats()
    assert (stats.swapped_out > 0, stats.recompute_cheaper > 0) == (swaps, not swaps)
    assert_complete(driver, *requests)


def test_what_is_preempted_by_recomputation_goes_on_from_what_it_left() -> None:
    """A preempted sequence leaves its state as one that ends does."""
    driver, _ = engine(blocks=40, policy=PreemptionPolicy("recompute"), max_running=2)
    batch = make_request("batch", prompt(20), max_tokens=30, priority=2)
    driver.add(batch)
    for _ in range(10):
        driver.step()
    urgent = [make_request(str(i), prompt(9, 300 + 50 * i), max_tokens=3, priority=0) for i in range(2)]
    for request in urgent:
        driver.add(request)
    driver.run()
    assert driver.scheduler.stats().preemptions == 1
    assert driver.resumed["batch"].recomputed == 0
    assert_complete(driver, batch, *urgent)


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_beams_that_lose_their_candidates_compute_their_last_token_once(device: type[FakeRunner]) -> None:
    """Their state has seen that token: to go on from it would count the token twice."""
    runner = {"num_host_blocks": 200, "host_state_slots": 20, "state_slots": 30}
    driver, _ = engine(device, blocks=40, runner=runner, policy=PreemptionPolicy("swap"), max_running=6)
    driver.add(make_request("beams", prompt(20), n=4, max_tokens=20, priority=2, beam=BeamOptions(4)))
    for turn in range(8):
        for _ in range(3):
            driver.step()
        driver.add(make_request(str(turn), prompt(9, 300 + 50 * turn), n=3, max_tokens=3, priority=0))
    driver.run()
    assert driver.scheduler.stats().preemptions > 0
    assert not driver.failed
    driver.runner.close()


def test_a_pinned_prefix_keeps_its_state_whatever_else_runs() -> None:
    driver, _ = engine(runner={"state_slots": 8})
    system = prompt(3 * SIZE + 5)
    driver.scheduler.pin(PinPrefix("system", system))
    run_all(driver)
    assert driver.started["pin:system"].cached_tokens == 0
    for i in range(12):
        driver.add(make_request(str(i), prompt(40, 100 + 50 * i), max_tokens=3))
    run_all(driver)
    stats = driver.scheduler.stats()
    assert (stats.pinned_states, stats.pinned_blocks) == (1, 3)
    driver.add(make_request("asks", [*system[: 3 * SIZE], 901, 902], max_tokens=3))
    run_all(driver)
    assert driver.started["asks"].cached_tokens == 3 * SIZE
    driver.scheduler.kv.pinned.unpin("system")
    assert driver.scheduler.stats().pinned_states == 0


def test_a_pin_whose_state_is_missing_is_computed() -> None:
    driver, _ = engine()
    driver.add(make_request("long", prompt(6 * SIZE), max_tokens=1))
    run_all(driver)
    computed = driver.runner.tokens_computed
    driver.scheduler.pin(PinPrefix("part", prompt(3 * SIZE)))
    run_all(driver)
    assert driver.runner.tokens_computed == computed + 3 * SIZE
    assert driver.scheduler.stats().pinned_states == 1
    driver.started.clear()
    driver.scheduler.pin(PinPrefix("part", prompt(3 * SIZE)))
    run_all(driver)
    assert driver.runner.tokens_computed == computed + 3 * SIZE
    driver.scheduler.kv.pinned.unpin("part")


def test_a_pinned_state_that_was_lost_is_pinned_again_by_whoever_computes_it() -> None:
    driver, _ = engine()
    driver.scheduler.pin(PinPrefix("part", prompt(2 * SIZE)))
    run_all(driver)
    kv = driver.scheduler.kv
    assert kv.states is not None
    (slot,) = kv.states.snapshots.pins.blocks
    assert kv.pinned.release()
    kv.states.pool.unpublish(slot)
    assert driver.scheduler.stats().pinned_states == 0
    driver.add(make_request("long", prompt(6 * SIZE), max_tokens=2))
    run_all(driver)
    assert driver.scheduler.stats().pinned_states == 1
    kv.pinned.unpin("part")


def test_pins_take_half_of_the_slots_at_most_and_give_way_to_a_request_that_is_alone() -> None:
    driver, _ = engine(runner={"state_slots": 7})
    for i in range(4):
        driver.scheduler.pin(PinPrefix(str(i), prompt(2 * SIZE, 100 * i)))
        run_all(driver)
    assert list(driver.failed) == ["pin:3"]
    assert "half of the 6 slots" in driver.failed["pin:3"].message
    wide = make_request("wide", prompt(20, 700), n=5, max_tokens=3)
    driver.add(wide)
    run_all(driver)
    assert_complete(driver, wide)
    assert driver.scheduler.stats().pinned_states == 0


def test_a_sequence_longer_than_the_memory_keeps_its_state_on_the_device() -> None:
    runner = {"num_host_blocks": 60, "reads_host": True, "host_state_slots": 4}
    driver, plans = engine(blocks=9, runner=runner, policy=PreemptionPolicy("swap"))
    request = make_request("long", prompt(150), max_tokens=20)
    driver.add(request)
    driver.run()
    assert_complete(driver, request)
    assert driver.runner.cold_reads > 0
    assert not any(plan.state_out for plan in plans)
    assert driver.scheduler.stats().cached_states == 0, "it leaves nothing of its cache"


def test_a_deadline_and_an_abort_give_all_slots_back() -> None:
    now = 0.0
    driver, _ = engine(DelayedRunner, clock=lambda: now)
    driver.add(make_request("late", prompt(30), n=3, max_tokens=50, deadline=5.0))
    driver.add(make_request("gone", prompt(30, 100), n=2, max_tokens=50))
    for _ in range(6):
        driver.step()
    now = 6.0
    driver.scheduler.abort("gone", 1)
    driver.scheduler.abort("gone")
    driver.run()
    assert driver.failed["late"].code == "deadline"
    states = driver.scheduler.kv.states
    assert states is not None
    assert (states.pool.used, states.pool.quarantined) == (0, 0)
    driver.runner.close()
