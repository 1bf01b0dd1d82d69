"""Plans say which decodes begin with the same blocks; the fake runner checks what they say."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_driver import Driver, make_request
from fake_runner import DelayedRunner, FakeRunner

from octavo_worker.contract.step import SharedReading

PREFIX = list(range(100, 140))


MOST_QUERIES = 5


def driver(num_blocks: int, device: type[FakeRunner] = FakeRunner, unit_blocks: int = 2, **options: Any) -> Driver:
    reading = SharedReading(unit_blocks, 1, MOST_QUERIES)
    return Driver.create(num_blocks, 4, device=device, shared_reading=reading, **options)


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


@pytest.mark.parametrize(("end", "grouped"), [(1, 4), (MOST_QUERIES, 4), (MOST_QUERIES + 1, 0)])
def test_short_ends_of_prompts_read_what_is_cached_together(end: int, grouped: int) -> None:
    """All that comes after the cached beginning is one chunk of a prompt."""
    engine = driver(200)
    engine.add(make_request("first", [*PREFIX, 7], max_tokens=1))
    engine.run()
    assert engine.runner.grouped_prompts == 0
    for i in range(4):
        engine.add(make_request(str(i), [*PREFIX, *[i] * end], max_tokens=1))
    engine.run()
    assert engine.runner.grouped_prompts == grouped


def test_decodes_and_ends_of_prompts_read_together() -> None:
    engine = driver(200)
    engine.add(make_request("first", [*PREFIX, 7], max_tokens=20))
    for _ in range(3):
        engine.step()
    engine.add(make_request("second", [*PREFIX, 8], max_tokens=2))
    engine.step()
    assert engine.runner.grouped_prompts == 1
    engine.run()


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


LONG = {"num_host_blocks": 200, "reads_host": True}


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_samples_of_a_long_prompt_read_what_is_on_the_host_together(device: type[FakeRunner]) -> None:
    engine = driver(17, device, runner=LONG)
    engine.add(make_request("long", range(200), n=3, max_tokens=20))
    engine.run()
    assert engine.runner.cold_reads > 0
    assert engine.runner.grouped_plans > 10


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_blocks_that_a_long_sequence_leaves_are_shared_with_no_other(device: type[FakeRunner], samples: int) -> None:
    """It outgrows the device while it decodes, and others get its blocks, some of them the first as their first."""
    rng = random.Random(samples)
    engine = driver(25, device, 1, runner=LONG, max_running=8)
    engine.add(make_request("long", range(50), n=samples, max_tokens=400))
    while not engine.runner.cold_reads:
        engine.step()
    for i in range(60):
        engine.add(make_request(str(i), [rng.randrange(99) for _ in range(rng.randrange(8, 40))], max_tokens=5))
        for _ in range(3):
            engine.step()
    engine.run()
    assert (engine.runner.grouped_plans > 0) == (samples > 1)
