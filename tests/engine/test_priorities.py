"""Which requests run first, which are preempted, and that none waits for ever."""

from __future__ import annotations

import pytest
from engine_driver import Driver, expected_beams, expected_tokens, make_request

from octavo_worker.contract.messages import BeamOptions
from octavo_worker.memory.cost import PreemptionPolicy


def numbers(start: int, count: int) -> range:
    return range(start, start + count)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_high_class_takes_a_slot_from_the_last_of_the_lowest(mode):
    driver = Driver.create(
        100, 4, max_running=3, runner={"num_host_blocks": 50}, policy=PreemptionPolicy(mode), token_budget=512
    )
    low = [make_request(f"low{i}", numbers(100 * i, 10), max_tokens=20, priority=2) for i in range(2)]
    normal = make_request("normal", numbers(300, 10), max_tokens=20)
    for request in (*low, normal):
        driver.add(request)
    for _ in range(2):
        driver.step()
    high = make_request("high", numbers(500, 10), max_tokens=5, priority=0)
    driver.add(high)
    for _ in range(6):
        driver.step()
    assert driver.reasons["high", 0] == "length", "it ran at once"
    assert driver.scheduler.stats().preemptions == 1
    assert len(driver.tokens["low0", 0]) > len(driver.tokens["low1", 0]), "the last of the lowest class gave way"
    driver.run()
    for request in (*low, normal, high):
        assert driver.tokens[request.id, 0] == expected_tokens(request, 0)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_high_class_takes_memory_from_a_whole_group(mode):
    driver = Driver.create(21, 4, runner={"num_host_blocks": 50}, policy=PreemptionPolicy(mode))
    beams = make_request("beams", numbers(0, 24), n=4, max_tokens=14, priority=2, beam=BeamOptions(4))
    driver.add(beams)
    for _ in range(6):
        driver.step()
    high = make_request("high", numbers(500, 40), max_tokens=5, priority=0)
    driver.add(high)
    for _ in range(7):
        driver.step()
    assert driver.reasons["high", 0] == "length"
    assert driver.scheduler.stats().preemptions == 4
    driver.run()
    assert [driver.tokens["beams", i] for i in range(4)] == expected_beams(beams)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_high_class_takes_no_more_memory_than_it_needs(mode):
    driver = Driver.create(13, 4, runner={"num_host_blocks": 50}, policy=PreemptionPolicy(mode))
    low = [make_request(f"low{i}", numbers(100 * i, 13), max_tokens=3, priority=2) for i in range(3)]
    for request in low:
        driver.add(request)
    driver.step()
    driver.add(make_request("high", numbers(500, 8), max_tokens=2, priority=0))
    driver.run()
    assert driver.scheduler.stats().preemptions == 1
    assert [len(driver.tokens[request.id, 0]) for request in low] == [3, 3, 3]


def test_the_same_class_takes_nothing_from_each_other():
    driver = Driver.create(100, 4, max_running=2, token_budget=64)
    for i in range(4):
        driver.add(make_request(str(i), numbers(100 * i, 10), max_tokens=6))
    driver.run()
    assert driver.scheduler.stats().preemptions == 0


def test_the_earliest_deadline_of_a_class_goes_first():
    now = 0.0
    driver = Driver.create(100, 4, max_running=1, token_budget=64, clock=lambda: now)
    finished: list[str] = []
    driver.add(make_request("running", numbers(0, 4), max_tokens=2))
    driver.step()
    for name, deadline, priority in [("none", None, 1), ("late", 900.0, 1), ("soon", 100.0, 1), ("high", None, 0)]:
        driver.add(make_request(name, numbers(10, 4), max_tokens=2, deadline=deadline, priority=priority))
    while driver.scheduler.has_requests:
        finished += [token.id for token in driver.step().tokens if token.finish_reason is not None]
    assert finished == ["high", "soon", "late", "running", "none"]


def test_a_request_that_waits_for_long_rises_until_nothing_can_starve_it():
    now = 0.0
    driver = Driver.create(100, 4, max_running=1, token_budget=64, clock=lambda: now, aging_s=10.0)
    driver.add(make_request("batch", numbers(0, 4), max_tokens=2, priority=2))
    for i in range(40):
        driver.add(make_request(f"high{i}", numbers(10, 4), max_tokens=2, priority=0))
        driver.step()
        driver.step()
        now += 1.0
        if ("batch", 0) in driver.reasons:
            break
    assert 20 <= now < 30, "two classes to rise, 10 s each, then behind the high ones that came before it"


def test_a_sequence_that_runs_does_not_age():
    now = 0.0
    driver = Driver.create(100, 4, clock=lambda: now, aging_s=1.0)
    driver.add(make_request("batch", numbers(0, 4), max_tokens=30, priority=2))
    for _ in range(20):
        driver.step()
        now += 1.0
    assert driver.scheduler._requests.find("batch").priority == 2
