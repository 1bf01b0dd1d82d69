"""Scheduling policies: classes or plain first come first served; under neither does a request wait for ever."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from engine_driver import Driver, expected_beams, expected_tokens, make_request
from fake_runner import DelayedRunner, FakeRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.engine.scheduling.policy import FcfsPolicy, PriorityPolicy, SchedulingPolicy
from octavo_worker.memory.cost import PreemptionPolicy

Policy = Callable[[], SchedulingPolicy]
POLICIES = pytest.mark.parametrize("policy", [PriorityPolicy, FcfsPolicy])


def first_come(**options: int) -> Driver:
    return Driver.create(100, 4, max_running=1, token_budget=64, scheduling=FcfsPolicy(), **options)


def test_first_come_first_served_ignores_class_deadline_and_length():
    driver = first_come(clock=lambda: 0.0)
    for name, priority, deadline, limit in [("a", 2, None, 2), ("b", 2, 9.0, 9), ("c", 0, 5.0, 3), ("d", 1, None, 1)]:
        driver.add(make_request(name, range(5), max_tokens=limit, priority=priority, deadline=deadline))
    driver.run()
    assert [name for name, _ in driver.reasons] == ["a", "b", "c", "d"]


def test_first_come_first_served_preempts_nothing_for_a_higher_class():
    driver = first_come()
    driver.add(make_request("batch", range(5), max_tokens=9, priority=2))
    driver.step()
    driver.add(make_request("high", range(5), max_tokens=2, priority=0))
    driver.run()
    assert driver.scheduler.stats().preemptions == 0
    assert list(driver.reasons) == [("batch", 0), ("high", 0)]


def test_first_come_first_served_preempts_the_latest_when_memory_runs_out():
    driver = Driver.create(9, 4, scheduling=FcfsPolicy())
    early = make_request("early", range(12), max_tokens=16, priority=2)
    late = make_request("late", range(100, 112), max_tokens=16, priority=0)
    driver.add(early)
    driver.step()
    driver.add(late)
    driver.run()
    assert driver.resumed.keys() == {"late"}
    for request in (early, late):
        assert driver.tokens[request.id, 0] == expected_tokens(request, 0)


def test_first_come_first_served_admits_a_batch_without_room_to_grow():
    driver = Driver.create(131, 8, max_running=100, token_budget=700, scheduling=FcfsPolicy())
    for i in range(41):
        limit = 89 if i else 225
        driver.add(make_request(str(i), range(20 * i, 20 * i + 16), max_tokens=limit, priority=2))
    driver.step()
    driver.step()
    assert driver.scheduler.stats().running == 41


def drawn(rng: random.Random, name: str) -> AddRequest:
    start, length, limit = rng.randrange(900), rng.randint(1, 20), rng.randint(1, 12)
    n, priority = rng.choice([1, 1, 2, 3]), rng.randrange(3)
    beam = BeamOptions(n) if rng.random() < 0.3 else None
    return make_request(
        name, [start + i % 7 for i in range(length)], max_tokens=limit, n=n, priority=priority, beam=beam
    )


@POLICIES
@settings(max_examples=examples(15), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    usable_blocks=st.integers(24, 40),
    mode=st.sampled_from(["swap", "recompute"]),
    device=st.sampled_from([FakeRunner, DelayedRunner]),
)
def test_nothing_starves_beside_an_endless_stream(policy: Policy, seed, usable_blocks, mode, device):
    """Requests of the highest class keep coming, and always some of them wait. A step takes a second of the clock."""
    rng, now = random.Random(seed), 0.0
    driver = Driver.create(
        usable_blocks + 1,
        4,
        device=device,
        runner={"num_host_blocks": rng.choice([4, 40])},
        policy=PreemptionPolicy(mode),
        scheduling=policy(),
        max_running=rng.randint(3, 6),
        token_budget=rng.choice([16, 64]),
        aging_s=10.0,
        clock=lambda: now,
    )
    requests = [drawn(rng, str(i)) for i in range(rng.randint(1, 6))]
    for request in requests:
        driver.add(request)
    wanted = set(driver.tokens)
    rivals = 0
    while not wanted <= driver.reasons.keys():
        while driver.scheduler.stats().waiting < 4:
            rivals += 1
            driver.add(make_request(f"rival{rivals}", [rng.randrange(900)], max_tokens=rng.randint(1, 12), priority=0))
        driver.step()
        now += 1.0
        assert now < 1000, "a request starves"
    driver.run()
    driver.runner.close()
    assert driver.failed == {}
    for request in requests:
        indices = range(len(request.sequences))
        beams = request.sampling.beam is not None
        expected = expected_beams(request) if beams else [expected_tokens(request, i) for i in indices]
        assert [driver.tokens[request.id, i] for i in indices] == expected
