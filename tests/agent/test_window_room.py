"""A worker claims no more than both groups of blocks hold, and no less than they nearly do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import redis
from agent_desk import ready
from class_fleet import BLOCK, Member
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from queue_client import Queue, known_queue
from slab_sizes import shared_memory
from tiers import examples
from waiting import eventually
from worker_process import WorkerProcess

from octavo_worker.agent.claims.memory import Memory, Need
from octavo_worker.contract.messages import WindowLimits
from octavo_worker.engine.sequence import State

WINDOW = 13  # in blocks of 4: 4 at most
LIVE, CHUNK = 4, 16
SHORT, LONG = 10, 100
ROWS = 12


def member(connection: redis.Redis, windows: int, *, shared: int = 0, rows: int = ROWS) -> Member:
    """A worker with so many blocks of windows, or with memory for both groups, of which one sequence has `shared`
    blocks in any case: a block of windows displaces five."""
    connection.flushall()
    blocks, memory = 300, {"window_blocks": windows + 1, "layer_window": WINDOW}
    if shared:
        blocks, memory = shared_memory(shared, WINDOW, BLOCK, (5, 1))
    return Member("w", known_queue(connection), rows, blocks - 1, lambda: 0.0, memory)


def submit(worker: Member, prompts: Sequence[int]) -> None:
    for number, length in enumerate(prompts):
        prompt = [number, *range(20, 19 + length)]
        worker.queue.submit(prompt, seed=number, sampling={"max_tokens": 300, "ignore_eos": True})


def settle(worker: Member, tokens: int) -> None:
    """Compute prompts of so many tokens that were claimed: all find memory, though nothing ends."""
    for _ in range(3 + tokens // 32):
        worker.step()
        if not worker.requests(State.WAITING) and all(job.is_computed for job in worker.jobs.values()):
            worker.step()  # gives back what the last chunk has left of windows
            return
    raise AssertionError("a job was claimed that waits for memory")


def fill(worker: Member) -> int:
    """Claim until there is no room. How many jobs run then."""
    while claims := worker.claim():
        settle(worker, sum(len(claim.request.prompt or ()) for claim in claims))
    return worker.stats.running


def test_short_prompts_are_claimed_as_far_as_there_are_windows(redis_sync: redis.Redis) -> None:
    worker = member(redis_sync, 40)
    submit(worker, [SHORT] * 20)
    assert 40 // (LIVE + 1) - 1 <= fill(worker) <= 40 // LIVE
    assert worker.stats.free_blocks > 200


def test_long_prompts_are_claimed_as_far_as_there_are_windows_and_a_chunk(redis_sync: redis.Redis) -> None:
    worker = member(redis_sync, 3 * (LIVE + 1) + CHUNK)
    submit(worker, [LONG] * 20)
    assert fill(worker) == 3


def test_of_shared_memory_short_prompts_take_what_both_groups_need(redis_sync: redis.Redis) -> None:
    worker = member(redis_sync, 0, shared=200)
    submit(worker, [SHORT] * 20)
    fills = worker.blocks // (5 * LIVE + SHORT // BLOCK + 2)
    assert fills - 3 <= fill(worker) <= fills


def test_of_shared_memory_long_prompts_take_a_window_each(redis_sync: redis.Redis) -> None:
    worker = member(redis_sync, 0, shared=400)
    submit(worker, [LONG] * 20)
    assert fill(worker) >= 6, "each has 25 blocks, and windows that displace 20"


@settings(max_examples=examples(60, quick=12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(st.one_of(st.integers(1, 24), st.integers(60, 200)), min_size=2, max_size=16),
    windows=st.integers(LIVE + CHUNK, 60),
    shared=st.one_of(st.just(0), st.integers(80, 400)),
)
@example(prompts=[SHORT] * 16, windows=LIVE + CHUNK, shared=0)
@example(prompts=[SHORT, 200] * 8, windows=30, shared=0)
@example(prompts=[SHORT] * 16, windows=0, shared=120)
@example(prompts=[200, SHORT] * 8, windows=0, shared=300)
def test_whatever_is_claimed_finds_memory(
    redis_sync: redis.Redis, prompts: list[int], windows: int, shared: int
) -> None:
    worker = member(redis_sync, windows, shared=shared)
    submit(worker, prompts)
    assert fill(worker)


@settings(max_examples=examples(1000, quick=200))
@given(
    free=st.builds(Need, st.integers(-50, 400), st.integers(-50, 400)),
    windows=st.builds(
        WindowLimits, st.just(0), st.integers(2, 20), st.integers(0, 40), st.sampled_from([0.0, 0.5, 5.2])
    ),
    longest=st.integers(20, 500),
    lengths=st.lists(st.integers(1, 500), max_size=40),
)
def test_prompts_for_which_there_is_room_fit(
    free: Need, windows: WindowLimits, longest: int, lengths: list[int]
) -> None:
    """Together, whatever their lengths: each takes its blocks and a window, and a step a chunk besides."""
    memory = Memory(ready(block_size=1, max_model_len=longest, enough_blocks=1000, windows=windows))
    most, tokens = memory.prompts(free)
    taken: list[int] = []
    for length in lengths:
        if length <= longest and len(taken) < most and sum(taken) + length <= tokens:
            taken.append(length)
    held = [min(length, windows.live) for length in taken]
    chunk = min(windows.chunk, sum(taken) - sum(held))
    assert not taken or memory.covers(free, Need(sum(taken), sum(held) + chunk))


@pytest.mark.parametrize("weight", [0.0, 5.2])
@given(free=st.builds(Need, st.integers(0, 400), st.integers(0, 400)), longest=st.integers(20, 500))
@example(free=Need(5, 5), longest=20)
@example(free=Need(168, 17), longest=168)
def test_a_prompt_that_fits_may_be_claimed(free: Need, longest: int, weight: float) -> None:
    windows = WindowLimits(0, 6, 11, weight)
    memory = Memory(ready(block_size=1, max_model_len=longest, enough_blocks=1000, windows=windows))
    most, tokens = memory.prompts(free)
    assert most
    for length in range(1, longest + 1):
        if memory.covers(free, Need(length, min(length, 6 + 11))):
            assert length <= tokens


def test_a_worker_leaves_to_others_what_its_windows_do_not_hold(
    queue: Queue, start_worker: Callable[..., WorkerProcess]
) -> None:
    """A sequence has a window of four blocks, of twenty: of jobs that are all there, five are claimed at once. One
    after the other they would be four, as each is expected to have a fifth block now and then."""
    jobs = [queue.submit(seed=seed, sampling={"max_tokens": 4000, "ignore_eos": True}) for seed in range(12)]
    worker = start_worker("step_seconds=0.01,window_blocks=21,layer_window=40", num_blocks=400).wait_ready()

    def has_grown() -> bool:
        info = worker.info()
        return info is not None and info.stats.running >= 5 and info.stats.used_windows >= 15

    eventually(has_grown)
    states = [state for (state,) in queue.fields(jobs, "st")]
    stats = worker.info().stats
    assert (states.count("running"), stats.running, stats.waiting, stats.preemptions) == (5, 5, 0, 0)
