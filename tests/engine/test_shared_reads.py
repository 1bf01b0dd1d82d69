"""Plans say which decodes begin with the same blocks; the fake runner checks what they say."""

from __future__ import annotations

import random

import pytest
from engine_driver import Driver, make_request
from fake_runner import DelayedRunner, FakeRunner

from octavo_worker.engine.plan import SharedReading

PREFIX = list(range(100, 140))


def driver(num_blocks: int, device: type[FakeRunner] = FakeRunner, **options: int) -> Driver:
    return Driver.create(num_blocks, 4, device=device, shared_reading=SharedReading(2, 1), **options)


def test_sequences_that_begin_alike_are_read_together() -> None:
    engine = driver(200)
    for i in range(5):
        engine.add(make_request(str(i), [*PREFIX, i, i], max_tokens=6))
    engine.run()
    assert engine.runner.grouped_plans >= 5


def test_a_plan_of_strangers_has_no_groups() -> None:
    engine = driver(200)
    for i in range(5):
        engine.add(make_request(str(i), [i, *PREFIX], max_tokens=6))
    engine.run()
    assert engine.runner.grouped_plans == 0


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
@pytest.mark.parametrize("seed", range(4))
def test_groups_hold_while_sequences_come_go_and_are_preempted(seed: int, device: type[FakeRunner]) -> None:
    rng = random.Random(seed)
    engine = driver(45, device, max_running=8)
    for i in range(60):
        prompt = PREFIX[: rng.randrange(0, 40)] + [rng.randrange(99) for _ in range(rng.randrange(1, 9))]
        engine.add(make_request(str(i), prompt, max_tokens=rng.randrange(1, 30), n=rng.choice([1, 1, 3])))
        for _ in range(rng.randrange(4)):
            engine.step()
    engine.run()
    assert engine.runner.grouped_plans > 0
    assert engine.scheduler.stats().preemptions > 0
