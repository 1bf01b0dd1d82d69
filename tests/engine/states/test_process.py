"""An engine with few slots for states runs fewer sequences, and says so at its start."""

from __future__ import annotations

import logging

import pytest
from engine_driver import Driver, assert_complete, make_request, prompt
from fake_runner import DelayedRunner, FakeRunner

from octavo_worker.contract.messages import BeamOptions
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.process import scheduler_for
from octavo_worker.engine.states.states import StateSizes


def test_few_slots_lower_the_batch_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scheduler = scheduler_for(FakeRunner(100, state_slots=20, host_state_slots=5), ModelOptions(model="fake"))
    assert scheduler.limits.max_running == 18
    assert "at most 18 of 256 sequences" in caplog.text
    assert "--kv-memory" in caplog.text
    assert scheduler.kv.states is not None
    assert scheduler.kv.states.host is not None
    assert (scheduler.kv.states.pool.total, scheduler.kv.states.host.total) == (19, 4)


def test_enough_slots_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    options = ModelOptions(model="fake", max_running=18, state_interval=32)
    with caplog.at_level(logging.WARNING):
        scheduler = scheduler_for(FakeRunner(100, state_slots=20), options)
    assert scheduler.limits.max_running == 18
    assert caplog.text == ""


def test_a_model_without_states_has_no_slots() -> None:
    scheduler = scheduler_for(FakeRunner(100), ModelOptions(model="fake"))
    assert scheduler.kv.states is None
    assert scheduler.stats().total_states == 0


def test_a_sequence_reads_one_slot_and_writes_another() -> None:
    with pytest.raises(ValueError, match="3 are needed"):
        StateSizes(2)


def test_as_many_run_as_have_slots_and_never_more() -> None:
    driver = Driver.create(200, 8, runner={"state_slots": 8})
    requests = [make_request(str(i), prompt(20, 30 * i), max_tokens=20) for i in range(12)]
    for request in requests:
        driver.add(request)
    most = 0
    while driver.busy:
        driver.step()
        most = max(most, driver.scheduler.stats().running)
    assert most == 6
    assert_complete(driver, *requests)


def test_more_samples_than_slots_are_refused_at_once() -> None:
    driver = Driver.create(200, 8, runner={"state_slots": 8})
    driver.add(make_request("wide", prompt(20), n=7))
    driver.add(make_request("beams", prompt(20), n=5, beam=BeamOptions(5)))
    driver.run()
    assert "at most 6" in driver.failed["wide"].message
    assert driver.failed["beams"].param == "beam_width"


def test_samples_wait_a_step_for_slots_that_the_step_in_flight_gives_back() -> None:
    """A snapshot of their prompt is on its way: none of them has to give way for it."""
    driver = Driver.create(200, 8, runner={"state_slots": 4}, device=DelayedRunner)
    request = make_request("two", prompt(20), n=2, max_tokens=9)
    driver.add(request)
    driver.run()
    assert driver.scheduler.stats().preemptions == 0
    assert_complete(driver, request)
    driver.runner.close()


def test_beams_wait_until_they_have_slots_to_part() -> None:
    """Nothing has to give way for them afterwards."""
    driver = Driver.create(200, 8, runner={"state_slots": 8})
    requests = [make_request(str(i), prompt(20, 30 * i), max_tokens=12) for i in range(2)]
    beams = make_request("beams", prompt(20, 100), n=4, max_tokens=12, beam=BeamOptions(4))
    for request in (*requests, beams):
        driver.add(request)
    driver.run()
    assert driver.scheduler.stats().preemptions == 0
    assert_complete(driver, *requests)
    assert not driver.failed


def test_a_prompt_that_begins_behind_a_snapshot_waits_for_a_slot_besides() -> None:
    """The only available slot is that of the snapshot."""
    driver = Driver.create(200, 8, runner={"state_slots": 5})
    for name in ("kept", "again"):
        driver.add(make_request(name, prompt(20), max_tokens=1))
        driver.run()
    states = driver.scheduler.kv.states
    assert states is not None
    held = states.pool.allocate(2)  # as pins do
    others = [make_request(str(i), prompt(5, 100 + 50 * i), max_tokens=20) for i in range(2)]
    late = make_request("late", [*prompt(20), 901], max_tokens=3)
    driver.add(others[0])
    driver.pipeline.advance()
    driver.add(late)
    driver.add(others[1])
    while driver.scheduler.has_requests:
        driver.pipeline.advance()
        driver.record(driver.scheduler.take_output())
    states.pool.release(held)
    driver.run()
    assert_complete(driver, *others, late)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_beams_fit_whatever_continues(width: int) -> None:
    driver = Driver.create(200, 8, runner={"state_slots": 8})
    for turn in range(3):
        driver.add(make_request(str(turn), prompt(20 + turn), n=width, max_tokens=12, beam=BeamOptions(width)))
    driver.run()
    assert not driver.failed
