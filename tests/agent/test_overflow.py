"""Jobs that were preempted long ago go where there is room for them, and only there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import waiting
from agent_desk import PROMPT, Desk, agent_desk, ready
from queue_client import MODEL

from octavo.queue import wire
from octavo.queue.calls import run_sync
from octavo.terms.messages import JobStatus
from octavo.terms.stats import WorkerStats
from octavo.terms.workers import WorkerInfo
from octavo_worker.agent.claims.overflow import Overflow
from octavo_worker.contract.messages import Abort, AddRequest, EngineStats, RequestResumed, StepOutput, WindowLimits

ROWS = 4


@pytest.fixture
async def desk(redis_url: str) -> AsyncIterator[Desk]:
    async with agent_desk(redis_url, attached=False) as made:
        made.agent.attach(made.engine, ready(max_running=ROWS, block_size=16, gives_way=True))
        yield made


def info(worker: str, *, digest: str = "", **stats: int) -> WorkerInfo:
    figures = WorkerStats(max_running=ROWS, **{"free_blocks": 99, **stats})
    return WorkerInfo(id=worker, model=MODEL, host="h", pid=1, started_at=0.0, digest=digest, stats=figures)


@pytest.fixture
def look(desk: Desk) -> Callable[..., Any]:
    """Looks for room beside workers of the given heartbeats."""

    async def look(*others: WorkerInfo) -> int:
        for other in (info("w"), *others):
            call = desk.queue.cell.heartbeat(other.id, [], lease_ms=60_000, info=wire.encode_worker(other))
            run_sync(desk.queue.connection, call)
        overflow = Overflow(
            desk.agent._connection, desk.queue.cell.keys, desk.agent, own=lambda: info("w"), pause_s=1.0
        )
        return await overflow.look()

    return look


async def fill(desk: Desk, **sampling: Any) -> tuple[str, AddRequest]:
    """All rows are of class high, and a job of class batch was preempted long ago."""
    low = desk.queue.submit(PROMPT, priority="batch", sampling={"max_tokens": 50, "ignore_eos": True, **sampling})
    await take(desk, 1)
    request = desk.engine.of(AddRequest)[-1]
    for _ in range(ROWS):
        desk.queue.submit(PROMPT, priority="high", sampling={"max_tokens": 50})
    await take(desk, ROWS)
    told(desk, preempted=[request.id])
    job = desk.agent._jobs[request.id]
    assert job.preempted_at is not None
    job.preempted_at -= 60.0
    return low, request


async def take(desk: Desk, count: int) -> None:
    before = len(desk.engine.of(AddRequest))
    desk.agent.take(desk.claim(count=count))
    await waiting.until(lambda: len(desk.engine.of(AddRequest)) == before + count)


def told(desk: Desk, **news: Any) -> None:
    desk.agent.on_step(StepOutput([], [], [], EngineStats(free_blocks=50), **news))


async def test_a_preempted_job_goes_where_there_is_room(desk: Desk, look: Callable[..., Any]) -> None:
    low, request = await fill(desk)
    desk.generate(request, 5, 6)
    await waiting.until(lambda: desk.queue.stored(low) == 2)
    assert await look(info("other")) == 1
    assert desk.queue.status(low) is JobStatus.QUEUED
    assert [message.id for message in desk.engine.of(Abort)] == [request.id]
    (claim,) = desk.claim().jobs
    assert (claim.job_id, claim.offset, claim.priority) == (low, 2, "batch")


@pytest.mark.parametrize(
    "other",
    [
        info("other", digest="another"),
        info("other", running=ROWS),
        info("other", waiting=1),
        info("other", free_blocks=3),
    ],
    ids=["unequal", "no row", "waits itself", "no blocks"],
)
async def test_it_stays_where_no_other_has_room(desk: Desk, look: Callable[..., Any], other: WorkerInfo) -> None:
    low, _ = await fill(desk)
    assert await look(other) == 0
    assert await look() == 0
    assert desk.queue.status(low) is JobStatus.RUNNING


async def test_it_stays_where_others_have_no_windows_for_it(desk: Desk, look: Callable[..., Any]) -> None:
    limits = ready(max_running=ROWS, block_size=16, gives_way=True, windows=WindowLimits(50, 4, 10))
    desk.agent.attach(desk.engine, limits)
    await fill(desk)
    assert await look(info("other", free_windows=3)) == 0
    assert await look(info("other", free_windows=20)) == 1


async def test_it_stays_if_it_is_back_or_went_just_now(desk: Desk, look: Callable[..., Any]) -> None:
    _, request = await fill(desk)
    told(desk, resumed=[RequestResumed(request.id, 0, 0)])
    assert await look(info("other")) == 0
    told(desk, preempted=[request.id])
    assert await look(info("other")) == 0


async def test_it_stays_if_there_is_room_for_its_class_here(desk: Desk, look: Callable[..., Any]) -> None:
    await fill(desk)
    await desk.agent.give_back([job for job in desk.agent._jobs.values() if job.claim.priority == "high"])
    assert await look(info("other")) == 0


async def test_what_would_have_to_be_made_again_stays(desk: Desk, look: Callable[..., Any]) -> None:
    await fill(desk, beam_width=2, n=2)
    assert await look(info("other")) == 0


async def test_no_more_leaves_than_finds_room(desk: Desk, look: Callable[..., Any]) -> None:
    lows = [(await fill(desk))[0] for _ in range(3)]
    assert await look(info("other", running=ROWS - 2)) == 2
    assert [desk.queue.status(low) for low in lows].count(JobStatus.QUEUED) == 2
