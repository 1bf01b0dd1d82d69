"""Owners of a job: the one that ends it knows those before it, and itself."""

from __future__ import annotations

import asyncio
import signal

import pytest
import redis
import waiting
from agent_desk import ready
from killable_server import forgotten_by, killable_server
from queue_client import MODEL, known_queue
from waiting import STALL_S, eventually

from octavo import AsyncClient
from octavo.queue.calls import run_sync
from octavo.queue.connection import connect
from octavo.queue.protocol import Append
from octavo.terms.messages import Chunk, JobError, JobStatus
from octavo_worker.agent.agent import Agent
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.agent.prompts.answer_form import EncodedPrompt
from octavo_worker.agent.publisher import Publisher
from octavo_worker.contract.messages import TokenOutput

PROMPT = (7, 8, 9)


def sampling(max_tokens, **fields):
    return {"max_tokens": max_tokens, "ignore_eos": True, **fields}


class Engine:
    def send(self, message):
        pass


class Ids:
    tokenizer, end_ids = None, ()

    def encode(self, request, *, at):
        return list(request.prompt)

    def token_bytes(self, token):
        return b""


def claimed(queue, lease_ms=60_000):
    call = queue.cell.claim(MODEL, "w", max_jobs=1, max_tokens=9999, lease_ms=lease_ms, idle=True)
    return run_sync(queue.connection, call)


def beat(queue, agent):
    held = agent.holding()
    agent.on_heartbeat(held, run_sync(queue.connection, queue.cell.heartbeat("w", held, lease_ms=60_000, info=b"")))


@pytest.mark.parametrize("how", ["cancelled", "refused"])
async def test_what_was_published_is_in_the_result_whenever_the_next_owner_ends_it(redis_url, how):
    with redis.Redis.from_url(redis_url) as connection:
        queue = known_queue(connection)
        job_id = queue.submit(PROMPT, sampling=sampling(50))
        (first,) = claimed(queue).jobs
        chunk = Chunk(token_ids=(1, 2, 3), texts=("a", "b", "c"))
        run_sync(connection, queue.cell.append([Append(job_id, first.token, 0, chunk)]))
        run_sync(connection, queue.cell.release([(job_id, first.token)], why="crashed"))
        async with connect(redis_url) as pool, AsyncClient(redis_url) as client:
            agent = Agent(pool, queue.cell, Ids(), changed=lambda: None)
            publishing = asyncio.create_task(agent.publisher.run())
            agent.attach(Engine(), ready(max_model_len=2 if how == "refused" else 1024))
            agent.take(claimed(queue))
            if how == "cancelled":  # before the next owner has read the stream
                run_sync(connection, queue.cell.cancel(job_id))
                beat(queue, agent)
            await asyncio.wait_for(agent.ended(), STALL_S)
            *_, last = [event async for event in client.events(job_id)]
            result = await client.result(job_id)
            publishing.cancel()
        assert result.token_ids == (1, 2, 3)
        assert last.end.usage.completion_tokens == last.offset == 3


async def test_tokens_that_the_server_forgot_come_before_an_end_of_any_kind(tmp_path):
    with killable_server(tmp_path) as server, redis.Redis.from_url(server.url) as connection:
        queue = known_queue(connection)
        job_id = queue.submit(PROMPT, sampling=sampling(50))
        job = ActiveJob(claimed(queue).jobs[0])
        job.begin(EncodedPrompt([7, 8, 9]), tokenizer=None, token_bytes=lambda token: b"")
        async with connect(server.url) as pool, AsyncClient(server.url) as client:
            left, heard = asyncio.Event(), []
            publisher = Publisher(
                pool, queue.cell, stop=lambda *_: None, gone=lambda *_: left.set(), ended=lambda _: None
            )
            publishing = asyncio.create_task(publisher.run())

            def add(*tokens):
                for token in tokens:
                    job.accept(TokenOutput(job.request_id, 0, token, finish_reason=None))
                publisher.add(job)

            async def follow():
                async for event in client.events(job_id):
                    heard.extend(event.token_ids)

            add(1, 2)
            await waiting.until(lambda: queue.stored(job_id) == 2)
            reader = asyncio.create_task(follow())
            with forgotten_by(server, tmp_path):
                add(3, 4, 5)
                await waiting.until(lambda: len(heard) == 5)
                publisher.hold()
            job.end(
                JobStatus.EXPIRED, JobError(code="expired", message="its deadline passed while the server was away")
            )
            publisher.add(job)
            publisher.resume()
            await asyncio.wait_for(left.wait(), STALL_S)
            await asyncio.wait_for(reader, STALL_S)
            again = [token async for event in client.events(job_id) for token in event.token_ids]
            publishing.cancel()
        assert heard == again == [1, 2, 3, 4, 5]


async def test_a_worker_that_claims_its_own_job_again_keeps_it(redis_url):
    with redis.Redis.from_url(redis_url) as connection:
        queue = known_queue(connection)
        job_id = queue.submit(PROMPT, sampling=sampling(50))
        async with connect(redis_url) as pool:
            agent = Agent(pool, queue.cell, Ids(), changed=lambda: None)
            agent.attach(Engine(), ready())
            agent.take(claimed(queue))
            connection.zadd("{c00}:L", {job_id: 1})
            run_sync(connection, queue.cell.reap())  # its lease ran out, or the server has forgotten the claim
            agent.take(claimed(queue))
            beat(queue, agent)
            assert agent.holding() == ((job_id, queue.field(job_id, "tok")),)


def test_a_stream_that_lost_its_beginning_is_not_continued(queue, start_worker):
    first = start_worker("step_seconds=0.01").wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(100))
    eventually(lambda: queue.stored(job) > 10)
    queue.connection.delete(queue.cell.keys.stream(job))  # evicted
    eventually(lambda: queue.stored(job) > 20)
    first.send(signal.SIGKILL)
    start_worker("step_seconds=0.01").wait_ready()
    eventually(lambda: queue.status(job).is_terminal)
    assert queue.status(job) == "failed"


async def test_a_result_that_nobody_could_read_is_left_to_the_stream(redis_url, monkeypatch):
    """64 sequences of 2,560 tokens with 20 log-probabilities each are 74 MiB; here the limit is lower instead."""
    monkeypatch.setattr("octavo.queue.wire.MAX_BYTES", 2000)
    with redis.Redis.from_url(redis_url) as connection:
        queue = known_queue(connection)
        job_id = queue.submit(PROMPT, sampling=sampling(1200))
        job = ActiveJob(claimed(queue).jobs[0])
        job.begin(EncodedPrompt([7, 8, 9]), tokenizer=None, token_bytes=lambda token: b"")
        async with connect(redis_url) as pool, AsyncClient(redis_url) as client:
            left = asyncio.Event()
            publisher = Publisher(
                pool, queue.cell, stop=lambda *_: None, gone=lambda *_: left.set(), ended=lambda _: None
            )
            publishing = asyncio.create_task(publisher.run())
            for token in range(1200):
                ends = "length" if token == 1199 else None
                job.accept(TokenOutput(job.request_id, 0, token, finish_reason=ends))
            publisher.add(job)
            await asyncio.wait_for(left.wait(), STALL_S)
            publishing.cancel()
            assert len((await client.result(job_id)).token_ids) == 1200
