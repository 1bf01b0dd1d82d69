"""Classes and tenants in the engine: what runs gives way at the next step, wherever it could."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import Driver, assert_complete, expected_beams, make_request, prompt
from fake_runner import DelayedRunner, FakeRunner

from octavo_worker.contract.messages import BATCH, HIGH, NORMAL, AddRequest, BeamOptions
from octavo_worker.engine.planner import MOST_PAUSES, PART_BESIDE
from octavo_worker.engine.scheduling.policy import FcfsPolicy, PriorityPolicy
from octavo_worker.memory.cost import PreemptionPolicy

MODES = pytest.mark.parametrize("mode", ["swap", "recompute"])


def busy(
    count: int, *, priority: int = BATCH, salt: bytes = b"", name: str = "low", **options: Any
) -> list[AddRequest]:
    """Requests that run for long."""
    return [
        make_request(f"{name}{i}", prompt(8, 20 * i), max_tokens=60, priority=priority, salt=salt, **options)
        for i in range(count)
    ]


def running(driver: Driver, *requests: AddRequest) -> Driver:
    for request in requests:
        driver.add(request)
    driver.step()
    while driver.scheduler.stats().waiting:  # prompts of the class batch begin in a step of their own
        driver.step()
    return driver


def spoke(driver: Driver, *requests: AddRequest) -> list[bool]:
    return [all(driver.tokens[request.id, s.index] for s in request.sequences) for request in requests]


# rows and blocks


@MODES
@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_all_that_came_together_begin_in_the_next_steps(mode, device):
    low = busy(16)
    driver = running(
        Driver.create(
            400, 4, max_running=16, device=device, runner={"num_host_blocks": 200}, policy=PreemptionPolicy(mode)
        ),
        *low,
    )
    high = [make_request(f"high{i}", prompt(9, 400 + i), max_tokens=3, priority=HIGH) for i in range(10)]
    for request in high:
        driver.add(request)
    for _ in range(2):
        driver.step()
    driver.pipeline.advance()
    driver.record(driver.scheduler.take_output())
    assert all(spoke(driver, *high))
    driver.run()
    driver.runner.close()
    assert_complete(driver, *low, *high)


@MODES
def test_a_full_cache_gives_way_to_samples_and_to_beams(mode):
    policy = PreemptionPolicy(mode)
    low = busy(10)
    driver = running(Driver.create(41, 4, runner={"num_host_blocks": 200}, policy=policy), *low)
    while driver.scheduler.stats().free_blocks > 8:
        driver.step()
    samples = make_request("samples", prompt(20, 500), n=4, max_tokens=6, priority=HIGH)
    beams = make_request("beams", prompt(20, 600), n=3, max_tokens=6, priority=NORMAL, beam=BeamOptions(3))
    driver.add(samples)
    driver.add(beams)
    for _ in range(4):
        driver.step()
    assert all(spoke(driver, samples))
    driver.run()
    assert_complete(driver, *low, samples)
    assert [driver.tokens["beams", i] for i in range(3)] == expected_beams(beams)


def test_an_oversized_request_gives_way_to_one_of_a_higher_class():
    driver = Driver.create(9, 4, runner={"num_host_blocks": 60, "reads_host": True}, token_budget=16)
    low = make_request("low", prompt(50), max_tokens=40, priority=BATCH)
    high = make_request("high", prompt(50, 300), max_tokens=4, priority=HIGH)
    driver.add(low)
    for _ in range(12):
        driver.step()
    assert driver.tokens["low", 0]
    driver.add(high)
    for _ in range(16):
        driver.step()
    assert ("high", 0) in driver.reasons
    assert ("low", 0) not in driver.reasons
    driver.run()
    assert_complete(driver, low, high)


def test_only_what_is_needed_gives_way():
    low = busy(8)
    driver = running(Driver.create(200, 4, max_running=8, token_budget=64), *low)
    for i in range(3):
        driver.add(make_request(f"high{i}", prompt(9, 400 + i), max_tokens=3, priority=HIGH))
    driver.step()
    assert driver.scheduler.stats().preemptions == 3


# tenants


@MODES
def test_a_tenant_that_runs_more_gives_way_to_one_that_runs_less(mode):
    mine = busy(8, priority=NORMAL, salt=b"a", name="mine")
    driver = running(
        Driver.create(200, 4, max_running=8, runner={"num_host_blocks": 200}, policy=PreemptionPolicy(mode)), *mine
    )
    other = busy(6, priority=NORMAL, salt=b"b", name="other")
    for request in other:
        driver.add(request)
    for _ in range(12):
        driver.step()
    assert spoke(driver, *other).count(True) == 4, "half of the rows"
    assert driver.scheduler.stats().preemptions == 4, "and no more swap places"
    driver.run()
    assert_complete(driver, *mine, *other)


def test_a_tenant_whose_memory_is_full_of_another_begins():
    mine = busy(10, salt=b"a", name="mine")
    driver = running(Driver.create(60, 4), *mine)
    while driver.scheduler.stats().free_blocks > 4:
        driver.step()
    other = make_request("other", prompt(30, 500), max_tokens=5, salt=b"b", priority=BATCH)
    driver.add(other)
    for _ in range(3):
        driver.step()
    assert all(spoke(driver, other))
    driver.run()
    assert_complete(driver, *mine, other)


def test_a_tenant_keeps_as_much_as_the_other_gets():
    mine = busy(2, priority=NORMAL, salt=b"a", name="mine")
    driver = running(Driver.create(100, 4, max_running=2), *mine)
    for name in (b"b", b"c"):
        driver.add(make_request(name.decode(), prompt(5), max_tokens=70, priority=NORMAL, salt=name))
    for _ in range(20):
        driver.step()
    assert driver.scheduler.stats().preemptions == 1
    assert [bool(driver.tokens[name, 0]) for name in ("b", "c")] == [True, False]
    driver.run()


def test_a_whole_gang_is_not_taken_for_less():
    gang = make_request("gang", prompt(8), n=4, max_tokens=30, priority=NORMAL, salt=b"a")
    driver = running(Driver.create(100, 4, max_running=4), gang)
    driver.add(make_request("other", prompt(8, 300), max_tokens=5, priority=NORMAL, salt=b"b"))
    for _ in range(5):
        driver.step()
    assert driver.scheduler.stats().preemptions == 0
    driver.run()


def test_lower_classes_give_way_before_other_tenants_do():
    mine, low = busy(3, priority=NORMAL, salt=b"a", name="mine"), busy(2)
    driver = running(Driver.create(200, 4, max_running=5), *mine, *low)
    driver.add(make_request("other", prompt(8, 300), max_tokens=5, priority=NORMAL, salt=b"b"))
    driver.step()
    output = driver.scheduler.stats()
    assert output.preemptions == 1
    assert driver.scheduler._requests.find("low1").members(driver.scheduler._requests.find("low1").sequences[0].state)
    driver.run()


def test_first_come_first_served_knows_no_tenants():
    driver = running(Driver.create(100, 4, max_running=2, scheduling=FcfsPolicy()), *busy(2, salt=b"a"))
    assert not driver.scheduler.gives_way
    driver.add(make_request("other", prompt(5), max_tokens=5, salt=b"b"))
    driver.run()
    assert driver.scheduler.stats().preemptions == 0


# resumed requests


def test_a_resumed_request_goes_first_within_its_class_only():
    driver = running(Driver.create(100, 4, max_running=1), make_request("now", prompt(4), max_tokens=5, priority=HIGH))
    finished: list[str] = []
    for name, priority, resumed in [("fresh", BATCH, False), ("back", BATCH, True), ("normal", NORMAL, False)]:
        request = make_request(name, prompt(4), max_tokens=2, priority=priority)
        request.resumed = resumed
        driver.add(request)
    while driver.busy:
        finished += [token.id for token in driver.step().tokens if token.finish_reason is not None]
    assert finished == ["now", "normal", "back", "fresh"]


# aging


def test_few_rise_at_a_time_and_one_after_the_other():
    now = 0.0
    driver = Driver.create(900, 4, max_running=66, token_budget=512, clock=lambda: now, aging_s=8.0)
    high = [make_request(f"high{i}", prompt(4, i), max_tokens=10 + i % 7, priority=HIGH) for i in range(800)]
    for request in high:
        driver.add(request)
    low = busy(8)
    for request in low:
        driver.add(request)
    promoted = []
    for _ in range(60):
        now += 1.0
        promoted += driver.step().promoted
    assert [(message.id, message.priority) for message in promoted] == [
        ("low0", NORMAL), ("low0", HIGH), ("low1", NORMAL), ("low1", HIGH),
    ], "2 of 66 rows are the share of the class batch"  # fmt: skip
    driver.run()
    assert_complete(driver, *low, *high)


def test_a_preempted_request_ages_from_then_on():
    now = 0.0
    driver = Driver.create(100, 4, max_running=1, clock=lambda: now, aging_s=10.0)
    running(driver, make_request("low", prompt(4), max_tokens=200, priority=BATCH))
    for _ in range(14):
        now += 1.0
        driver.step()
    driver.add(make_request("high", prompt(4, 50), max_tokens=200, priority=HIGH))
    rose = None
    while rose is None:
        now += 1.0
        rose = now if driver.step().promoted else None
    assert 25.0 <= rose <= 27.0


def test_a_higher_class_does_not_wait_behind_what_rose_and_finds_no_room():
    """The request that rose needs more than is free, and what runs of its own class does not give way to it."""
    now = 0.0
    driver = Driver.create(46, 4, clock=lambda: now, aging_s=10.0, max_running=16)
    driver.add(make_request("keeps", prompt(60), max_tokens=60, priority=HIGH))
    running(driver, make_request("short", prompt(40, 300), max_tokens=60, priority=NORMAL))
    large = make_request("large", prompt(88, 500), max_tokens=5, priority=NORMAL)
    driver.add(large)
    for _ in range(12):
        now += 1.0
        driver.step()
    assert not driver.tokens["large", 0]
    assert driver.scheduler._requests.find("large").priority == HIGH
    high = make_request("high", prompt(8, 800), max_tokens=2, priority=HIGH)
    driver.add(high)
    for _ in range(2):
        driver.step()
    assert all(spoke(driver, high))
    driver.run()
    assert_complete(driver, large, high)


# what the agent hears


def test_the_agent_hears_what_is_preempted_and_what_is_back():
    driver = running(Driver.create(100, 4, max_running=1), make_request("low", prompt(4), max_tokens=9, priority=BATCH))
    driver.add(make_request("high", prompt(4, 50), max_tokens=2, priority=HIGH))
    outputs = [driver.step() for _ in range(4)]
    assert [output.preempted for output in outputs] == [["low"], [], [], []]
    assert [[back.id for back in output.resumed] for output in outputs] == [[], [], ["low"], []]
    driver.run()


# first tokens


def test_a_batch_is_left_out_of_steps_that_compute_a_higher_prompt_but_not_for_ever():
    low = busy(2)
    driver = running(Driver.create(200, 4, max_running=8, token_budget=16), *low)
    high = make_request("high", prompt(160, 400), max_tokens=3, priority=HIGH)
    driver.add(high)
    said = []
    while not driver.tokens["high", 0]:
        said.append(sorted({token.id for token in driver.step().tokens}))
    assert said == [[]] * MOST_PAUSES + [[request.id for request in low], ["high"]]
    driver.run()
    assert_complete(driver, *low, high)


def test_the_prompt_of_a_batch_is_left_out_of_these_steps_too_but_not_for_ever():
    low = make_request("low", prompt(40 * 16), max_tokens=2, priority=BATCH)
    driver = running(Driver.create(400, 4, max_running=8, token_budget=16), low)
    computed = []
    for number in range(2 * MOST_PAUSES):
        driver.add(make_request(f"high{number}", prompt(4, 2000 + 4 * number), max_tokens=1, priority=HIGH))
        before = driver.runner.tokens_computed
        driver.step()
        computed.append(driver.runner.tokens_computed - before)
    assert computed == [4] * MOST_PAUSES + [4 + 16 // PART_BESIDE] + [4] * (MOST_PAUSES - 1)
    driver.run()
    assert_complete(driver, low)


def test_beside_a_dialogue_the_prompts_of_a_batch_get_a_part_of_the_budget():
    driver = running(Driver.create(400, 4, token_budget=64), make_request("talk", prompt(4), max_tokens=4))
    low = [make_request(f"low{i}", prompt(40, 100 + 50 * i), max_tokens=2, priority=BATCH) for i in range(4)]
    for request in low:
        driver.add(request)
    computed = []
    while driver.busy:
        before = driver.runner.tokens_computed
        driver.step()
        computed.append(driver.runner.tokens_computed - before)
    assert computed[:3] == [1 + 64 // PART_BESIDE] * 3
    assert 64 in computed[3:5], "alone it gets all of it"
    assert_complete(driver, *low)


def test_a_part_of_the_smallest_budget_is_a_token():
    talk = make_request("talk", prompt(2), max_tokens=60)
    driver = running(Driver.create(400, 4, token_budget=PART_BESIDE // 2), talk)
    low = make_request("low", prompt(6, 100), max_tokens=2, priority=BATCH)
    driver.add(low)
    for _ in range(10):
        driver.step()
    assert driver.tokens["low", 0]
    assert ("talk", 0) not in driver.reasons
    driver.run()
    assert_complete(driver, talk, low)


def test_a_dialogue_is_in_every_step():
    normal = busy(2, priority=NORMAL)
    driver = running(Driver.create(200, 4, max_running=8, token_budget=16), *normal)
    driver.add(make_request("high", prompt(60, 400), max_tokens=3, priority=HIGH))
    for _ in range(3):
        assert {token.id for token in driver.step().tokens} == {"low0", "low1"}
    driver.run()


def test_a_batch_goes_on_beside_a_prompt_that_finds_no_room():
    driver = Driver.create(41, 4, scheduling=PriorityPolicy())
    driver.add(make_request("keeps", prompt(100), max_tokens=40, priority=HIGH))
    running(driver, make_request("low", prompt(8, 300), max_tokens=40, priority=BATCH))
    driver.add(make_request("high", prompt(100, 500), max_tokens=2, priority=HIGH))
    driver.run()
    assert not driver.failed
