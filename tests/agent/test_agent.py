"""The agent's messages to its engine, and its treatment of jobs that begin, stop or move."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import waiting
from agent_desk import PROMPT, Desk, agent_desk
from redis.exceptions import ConnectionError
from tokenizers import Tokenizer

import octavo_worker
from octavo.queue import calls, wire
from octavo.queue.calls import run_sync
from octavo.queue.protocol import Append, HeartbeatReply
from octavo.terms.messages import Chunk, JobStatus
from octavo_worker.agent import agent as module
from octavo_worker.contract.messages import (
    BATCH,
    NORMAL,
    Abort,
    AddRequest,
    EngineStats,
    RequestFailed,
    StepOutput,
)

TOKENIZER = Tokenizer.from_file(str(Path(octavo_worker.__file__).parent / "bundled" / "demo" / "tokenizer.json"))


@pytest.fixture
async def desk(redis_url: str) -> AsyncIterator[Desk]:
    async with agent_desk(redis_url) as made:
        yield made


# what the engine is told


async def test_the_engine_stops_one_sequence_at_its_stop_string(redis_url: str) -> None:
    async with agent_desk(redis_url, tokenizer=TOKENIZER) as desk:
        job_id, request = await desk.start(n=2, stop=(" stop",))
        before, stop = TOKENIZER.encode("Then", add_special_tokens=False).ids, TOKENIZER.encode(" stop").ids
        desk.generate(request, *before, *stop, index=1)
        assert desk.engine.of(Abort) == [Abort(request.id, 1)]
        desk.generate(request, *before, *before, index=1)  # a step was under way
        desk.generate(request, *before, reason="length")
        await desk.ended()
        assert desk.engine.of(Abort) == [Abort(request.id, 1)]
        result = desk.queue.wait(job_id)
        assert [(s.finish_reason, s.text.strip()) for s in result.sequences] == [("length", "Then"), ("stop", "Then")]


async def test_the_engine_hears_no_stop_that_it_said_itself(desk: Desk) -> None:
    _, request = await desk.start()
    desk.generate(request, 1, 2, reason="length")
    await desk.ended()
    assert desk.engine.of(Abort) == []


@pytest.mark.parametrize("word", ["heartbeat", "append"])
@pytest.mark.parametrize("reason", ["cancelled", "expired"])
async def test_a_job_that_is_to_stop_leaves_the_engine(desk: Desk, reason: str, word: str) -> None:
    job_id, request = await desk.start()
    desk.queue.connection.hset(desk.queue.cell.keys.job(job_id), "cx", reason)
    if word == "heartbeat":
        desk.beat()
    else:
        desk.generate(request, 1)
    await desk.ended()
    assert desk.engine.of(Abort) == [Abort(request.id)]
    assert desk.queue.status(job_id) == reason
    error = desk.queue.wait(job_id).error
    assert (error and error.code) == ("expired" if reason == "expired" else None)


async def test_a_job_that_has_another_owner_leaves_the_engine(desk: Desk) -> None:
    job_id, request = await desk.start()
    desk.queue.connection.hset(desk.queue.cell.keys.job(job_id), "tok", "another's")
    desk.beat()
    assert desk.engine.of(Abort) == [Abort(request.id)]
    assert desk.agent.holding() == ()


async def test_jobs_that_are_given_back_leave_the_engine(desk: Desk) -> None:
    job_id, request = await desk.start()
    await desk.agent.release()
    assert desk.engine.of(Abort) == [Abort(request.id)]
    assert desk.queue.status(job_id) is JobStatus.QUEUED


async def test_the_engine_gets_a_deadline_by_the_clock_of_its_own_host(desk: Desk) -> None:
    job_id = desk.queue.submit(PROMPT, timeout_s=60)
    claims = desk.claim()
    desk.agent.take(dataclasses.replace(claims, server_time=claims.server_time - 1000))  # it is behind
    await waiting.until(lambda: desk.engine.of(AddRequest))
    late = desk.engine.of(AddRequest)[0].deadline - claims.jobs[0].deadline
    assert late > 500
    assert desk.agent.holding()[0][0] == job_id


async def test_a_job_that_was_taken_over_goes_first_under_its_tenant_s_own_salt(desk: Desk) -> None:
    _, request = await desk.start()
    assert (request.priority, request.salt) == (NORMAL, b"t")
    job_id = desk.queue.submit(PROMPT, tenant="other", sampling={"max_tokens": 9}, priority="batch")
    (first,) = desk.claim().jobs
    chunk = Chunk(token_ids=(1,), texts=("a",))
    run_sync(desk.queue.connection, desk.queue.cell.append([Append(job_id, first.token, 0, chunk)]))
    run_sync(desk.queue.connection, desk.queue.cell.release([(job_id, first.token)]))
    desk.agent.take(desk.claim())
    await waiting.until(lambda: len(desk.engine.of(AddRequest)) == 2)
    taken_over = desk.engine.of(AddRequest)[1]
    assert (taken_over.priority, taken_over.salt, taken_over.resumed) == (BATCH, b"other", True)


# room


async def test_nothing_is_claimed_beside_a_suspect(desk: Desk) -> None:
    assert desk.agent.room() is not None
    desk.queue.submit(PROMPT)
    claims = desk.claim()
    desk.agent.take(dataclasses.replace(claims, jobs=(dataclasses.replace(claims.jobs[0], solo=True),)))
    assert desk.agent.room() is None


async def test_without_heartbeats_nothing_is_written_or_claimed(desk: Desk) -> None:
    job_id, request = await desk.start()
    desk.agent.on_silence()
    desk.generate(request, 1, 2, reason="length")
    assert desk.agent.room() is None
    await asyncio.sleep(0.1)  # a publisher that is not held has sent them by then
    assert desk.queue.stored(job_id) == 0
    desk.beat()
    assert desk.agent.room() is not None
    await desk.ended()
    assert desk.queue.stored(job_id) == 2


async def test_an_engine_is_silent_only_while_it_has_work(desk: Desk) -> None:
    assert desk.agent.silence() == 0
    began = time.monotonic()
    _, request = await desk.start()
    assert desk.agent.silence() <= time.monotonic() - began
    desk.generate(request, 1, reason="length")
    assert desk.agent.silence() == 0


# claims


async def test_what_is_said_of_an_old_claim_does_not_end_the_new_one(desk: Desk) -> None:
    job_id, _ = await desk.start()
    old = desk.agent.holding()
    desk.queue.connection.zadd("{c00}:L", {job_id: 1})
    run_sync(desk.queue.connection, desk.queue.cell.reap())
    desk.agent.take(desk.claim())
    for reply in (HeartbeatReply((job_id,), ()), HeartbeatReply((), ((job_id, "cancelled"),))):
        desk.agent.on_heartbeat(old, reply)
    assert desk.agent.holding() == ((job_id, desk.queue.field(job_id, "tok")),)


async def test_a_job_that_ended_is_not_taken_for_another_workers(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """A heartbeat may reach the server behind a job's end, and its reply this worker before the reply to that end. That
    may be lost, too."""
    job_id, request = await desk.start()
    held = desk.agent.holding()
    desk.agent.on_silence()
    desk.generate(request, 1, 2, reason="length")
    (job,) = desk.agent._jobs.values()
    for call in (desk.queue.cell.append(job.unsent()), desk.agent.publisher._finish(job)):
        run_sync(desk.queue.connection, call)
    reply = desk.ask(held)
    assert reply.lost == (job_id,)
    with caplog.at_level(logging.INFO):
        desk.agent.on_heartbeat(held, reply)
        await desk.ended()
    assert "belongs to another worker" not in caplog.text
    assert f"job {job_id} completed, 2 tokens" in caplog.text


@pytest.mark.parametrize("over", [False, True])
async def test_a_job_of_another_worker_is_dropped_also_at_its_end(
    desk: Desk, caplog: pytest.LogCaptureFixture, over: bool
) -> None:
    job_id, request = await desk.start()
    held = desk.agent.holding()
    desk.queue.connection.zadd("{c00}:L", {job_id: 1})
    run_sync(desk.queue.connection, desk.queue.cell.reap())
    (claim,) = desk.claim().jobs
    desk.agent.on_silence()
    if over:
        desk.generate(request, 1, reason="length")
    desk.agent.on_heartbeat(held, desk.ask(held))
    await desk.ended()
    assert f"job {job_id} belongs to another worker" in caplog.text
    assert desk.queue.field(job_id, "tok") == claim.token
    assert desk.queue.stored(job_id) == 0


async def test_a_job_lost_before_it_is_read_never_reaches_the_engine(desk: Desk) -> None:
    job_id = desk.queue.submit(PROMPT)
    desk.agent.take(desk.claim())
    desk.agent.on_heartbeat(desk.agent.holding(), HeartbeatReply((job_id,), ()))
    await desk.start()
    assert [request.id.partition("#")[0] for request in desk.engine.of(AddRequest)] != [job_id]
    assert len(desk.engine.of(AddRequest)) == 1


async def test_a_job_claimed_when_the_engine_died_is_given_back_unharmed(desk: Desk) -> None:
    await desk.agent.detach(crashed=True)
    job_id = desk.queue.submit(PROMPT)
    desk.agent.take(desk.claim())
    await waiting.until(lambda: desk.queue.status(job_id) is JobStatus.QUEUED)
    assert desk.queue.field(job_id, "crashes") == "0"


async def test_a_job_that_a_worker_is_too_busy_for_goes_back_unharmed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    job_id, request = await desk.start()
    desk.generate(request, 1, 2)
    await waiting.until(lambda: desk.queue.stored(job_id) == 2)
    busy = RequestFailed(request.id, "busy", "no time was left")
    desk.agent.on_step(StepOutput([], [], [busy], EngineStats()))
    await waiting.until(lambda: desk.queue.status(job_id) is JobStatus.QUEUED)
    assert desk.queue.field(job_id, "crashes") == "0"
    assert desk.agent.holding() == ()
    (claim,) = desk.claim().jobs
    assert (claim.job_id, claim.offset) == (job_id, 2)


async def test_only_jobs_in_the_engine_crash_with_it(desk: Desk) -> None:
    inside, _ = await desk.start()
    outside = desk.queue.submit(PROMPT)
    desk.agent.take(desk.claim())  # its prompt is not read yet
    await desk.agent.detach(crashed=True)
    assert {desk.queue.status(job_id) for job_id in (inside, outside)} == {JobStatus.QUEUED}
    assert desk.queue.field(outside, "crashes") == "0"


async def test_tokens_that_the_server_forgot_are_sent_again_before_the_next(desk: Desk) -> None:
    job_id, request = await desk.start()
    desk.generate(request, 1, 2)
    await waiting.until(lambda: desk.queue.stored(job_id) == 2)
    keys = desk.queue.cell.keys
    desk.queue.connection.delete(keys.stream(job_id))
    desk.queue.connection.hset(keys.job(job_id), "n", 0)
    desk.generate(request, 3)
    await waiting.until(lambda: desk.queue.stored(job_id) == 3)


async def test_a_job_that_is_generated_survives_its_engine(desk: Desk) -> None:
    job_id, request = await desk.start()
    desk.agent.on_silence()
    desk.generate(request, 1, 2, reason="length")
    await desk.agent.detach(crashed=True)
    assert desk.agent.holding()[0][0] == job_id
    desk.beat()
    await desk.ended()
    assert desk.queue.wait(job_id).token_ids == (1, 2)


async def test_a_request_that_cannot_be_read_ends_with_the_reason(desk: Desk) -> None:
    job_id = desk.queue.submit(PROMPT)
    desk.queue.connection.hset(desk.queue.cell.keys.job(job_id), "body", b"\xc1")
    desk.agent.take(desk.claim())
    error = (await asyncio.to_thread(desk.queue.wait, job_id)).error
    assert error is not None
    assert error.code == "malformed_message"


async def test_a_deadline_that_the_engine_finds_is_no_failure(desk: Desk) -> None:
    job_id, request = await desk.start()
    late = RequestFailed(request.id, "deadline", "its deadline has passed")
    desk.agent.on_step(StepOutput([], [], [late], EngineStats()))
    await desk.ended()
    assert desk.queue.status(job_id) is JobStatus.EXPIRED


async def test_jobs_are_given_back_as_soon_as_the_server_is_there(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, _ = await desk.start()
    send, lost = module.run, [ConnectionError("away"), ConnectionError("away")]

    async def run(*arguments: object) -> object:
        if lost:
            raise lost.pop()
        return await send(*arguments)

    monkeypatch.setattr(module, "run", run)
    await desk.agent.release()
    assert desk.queue.status(job_id) is JobStatus.QUEUED


async def test_a_job_that_the_server_takes_nothing_of_ends_as_damaged(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mending does not help, so it is over: no engine crashed."""
    monkeypatch.setattr(calls, "_mending", lambda *failed: desk.queue.cell.probe())
    job_id, request = await desk.start()
    desk.queue.connection.xadd(desk.queue.cell.keys.stream(job_id), {"d": "another program's"}, id="999-0")
    desk.generate(request, 1)
    await desk.ended()
    await waiting.until(lambda: desk.queue.field(job_id, "st") == "failed")
    error = wire.decode_error(desk.queue.connection.hget(desk.queue.cell.keys.job(job_id), "err"))
    assert error.code == "job_damaged"
    assert desk.engine.of(Abort) == [Abort(request.id)]
