"""Memory goes to the group of blocks that lacks it: to windows of many short sequences, or to one long sequence."""

from __future__ import annotations

from engine_driver import Driver, expected_tokens, make_request
from fake_runner import DelayedRunner
from slab_sizes import shared_memory

from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.memory.slabs import SharedMemory

SIZE, WINDOW, EACH = 4, 13, (5, 1)


def engine(for_one: int = 100, **scheduler: int) -> Driver:
    blocks, memory = shared_memory(for_one, WINDOW, SIZE, EACH)
    return Driver.create(blocks, SIZE, device=DelayedRunner, runner=memory, **scheduler)


def shared(scheduler: Scheduler) -> SharedMemory:
    assert scheduler.kv.shared is not None
    return scheduler.kv.shared


def finish(driver: Driver, requests: list) -> None:
    while driver.busy:
        driver.step()
    for request in requests:
        assert driver.tokens[request.id, 0] == expected_tokens(request, 0)


def test_short_sequences_have_windows_where_one_long_one_had_blocks_and_back() -> None:
    driver = engine()
    memory = shared(driver.scheduler)
    first = memory.windows.total
    short = [make_request(f"short {n}", [n, *range(14)], max_tokens=8) for n in range(16)]
    for request in short:
        driver.add(request)
    running = 0
    while driver.busy:
        driver.step()
        running = max(running, driver.scheduler.stats().running)
        driver.scheduler.check_integrity()
    assert running * 4 > first, "more than would have room in what windows began with"
    assert memory.windows.total > first
    finish(driver, short)
    long = make_request("long", range(300), max_tokens=60)
    driver.add(long)
    finish(driver, [long])
    assert memory.blocks.total >= 90, "the blocks of 360 tokens"
    assert driver.scheduler.stats().preemptions == 0


def test_the_longest_sequence_runs_in_what_is_left_to_it() -> None:
    """Beside windows that others have left, in slabs wherever they were."""
    driver = engine(60)
    short = [make_request(f"short {n}", [n, *range(20)], max_tokens=9) for n in range(12)]
    for request in short:
        driver.add(request)
    finish(driver, short)
    capacity = driver.scheduler.kv.capacity.device_tokens
    assert capacity >= 50 * SIZE
    longest = make_request("longest", range(capacity - 40), max_tokens=40)
    driver.add(longest)
    finish(driver, [longest])
    driver.add(make_request("longer", range(capacity), max_tokens=1))
    driver.step()
    assert "longer" in driver.failed


def test_a_prompt_is_computed_in_the_chunks_that_windows_have_room_for() -> None:
    driver = engine(40, token_budget=400)
    capacity = driver.scheduler.kv.capacity.device_tokens
    prompt = make_request("prompt", range(capacity - 4), max_tokens=4)
    driver.add(prompt)
    finish(driver, [prompt])


def test_contents_of_the_other_group_are_evicted_before_a_sequence_is_preempted() -> None:
    driver = engine(60)
    kept = make_request("kept", range(200), max_tokens=1)
    driver.add(kept)
    finish(driver, [kept])
    assert driver.scheduler.stats().cached_blocks >= 49
    short = [make_request(f"short {n}", [n, *range(30)], max_tokens=30) for n in range(20)]
    for request in short:
        driver.add(request)
    finish(driver, short)
    assert driver.scheduler.stats().preemptions == 0
