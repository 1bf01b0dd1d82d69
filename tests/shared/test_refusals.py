"""A server that refuses for a moment, or for good: no caller gives up too early, and errors are octavo's own."""

from __future__ import annotations

import asyncio
from typing import Any

import fake_worker as fake
import pytest
from waiting import STALL_S, until

from octavo import AsyncClient, JobStatus, OctavoError
from octavo.client.handles import AsyncJob
from octavo.queue import wire
from octavo.queue.calls import run
from octavo.queue.connection import connect
from octavo.service.server import EmbeddedServer
from octavo.terms.errors import InvalidRequest, ServerUnavailable
from octavo.terms.messages import Terminal, Usage
from octavo.terms.models import JobRequest


async def append(connection, claim, start, tokens):
    item = fake.Append(claim.job_id, claim.token, start, fake.chunk_of(list(tokens), last=False))
    await run(connection, fake.CELL.append([item]))


async def followed(client, connection):
    """A job with one token that a reader has got."""
    job = await client.submit("a", model=fake.MODEL, max_tokens=9)
    claim = await fake.claimed(connection)
    heard: list[Any] = []

    async def follow():
        async for event in job.events():
            heard.append(event)

    reader = asyncio.create_task(follow())
    await append(connection, claim, 0, [0])
    await until(lambda: heard)
    return job, claim, heard, reader


async def test_a_stream_is_patient_as_soon_as_the_server_knows_of_its_reader(client, connection):
    job = await client.submit("a", model=fake.MODEL)
    await connection.execute_command("ACL SETUSER default -xrange")
    try:
        reader = asyncio.create_task(anext(job.events()))
        await until(lambda: connection.hget(client._keys.job(job.id), "gw"))
        await asyncio.sleep(0.5)
        assert not reader.done()
    finally:
        await connection.execute_command("ACL SETUSER default +xrange")
    await job.cancel()
    assert (await asyncio.wait_for(reader, STALL_S)).end.status is JobStatus.CANCELLED


async def test_a_stream_survives_a_server_that_refuses_for_a_moment(client, connection):
    _job, claim, heard, reader = await followed(client, connection)
    await connection.config_set("min-replicas-to-write", 1)  # NOREPLICAS; READONLY and MISCONF are the same kind
    await connection.client_kill_filter(_type="pubsub")
    await asyncio.sleep(0.5)
    await connection.config_set("min-replicas-to-write", 0)
    await append(connection, claim, 1, [1])
    await until(lambda: len(heard) == 2)
    assert not reader.done()
    reader.cancel()


async def test_a_stream_survives_a_server_that_is_busy_for_a_moment(client, connection):
    job, claim, _heard, reader = await followed(client, connection)
    await connection.config_set("busy-reply-threshold", 50)
    slow = asyncio.create_task(connection.eval("local n = 0 while n < 1.5e8 do n = n + 1 end return n", 0))
    await connection.client_kill_filter(_type="pubsub")
    await slow  # some seconds of another program's script
    await connection.config_set("busy-reply-threshold", 5000)
    await append(connection, claim, 1, [1])
    end = Terminal(status=JobStatus.COMPLETED, usage=Usage(completion_tokens=2))
    await run(connection, fake.CELL.finish(job.id, claim.token, end, wire.encode_result(end, [])))
    await asyncio.wait_for(reader, STALL_S)


async def test_a_stream_survives_a_result_that_cannot_be_read_for_a_moment(client, connection):
    job, claim, heard, reader = await followed(client, connection)
    client._subscriber._deliver = lambda data: None  # messages are lost
    await append(connection, claim, 1, [1])
    end = Terminal(status=JobStatus.COMPLETED, usage=Usage(completion_tokens=2))
    chunk = fake.chunk_of([0, 1], last=True)
    await run(connection, fake.CELL.finish(job.id, claim.token, end, wire.encode_result(end, [chunk])))
    await connection.delete(client._keys.stream(job.id))  # as if it had expired before the result
    await connection.execute_command("ACL SETUSER default -get")
    try:
        await asyncio.sleep(2.5)  # longer than until the next poll
        assert not reader.done()
    finally:
        await connection.execute_command("ACL SETUSER default +get")
    await asyncio.wait_for(reader, STALL_S)
    assert [token for event in heard for token in event.token_ids] == [0, 1]
    assert heard[-1].end == end


async def test_one_spoiled_job_does_not_end_the_poll_of_all(client, connection):
    spoiled, *_, other_reader = await followed(client, connection)
    _job, claim, heard, reader = await followed(client, connection)
    await connection.set(client._keys.job(spoiled.id), "somebody else's")
    await asyncio.sleep(2.5)
    await connection.zadd("{c00}:L", {spoiled.id: 1})
    assert (await run(connection, fake.CELL.reap())).jobs == 1  # the spoiled one has ended
    deliver, client._subscriber._deliver = client._subscriber._deliver, lambda data: None  # a message is lost
    await append(connection, claim, 1, [1])
    await asyncio.sleep(0.3)
    client._subscriber._deliver = deliver
    await until(lambda: len(heard) == 2)
    reader.cancel()
    other_reader.cancel()


async def test_a_reader_that_is_ahead_hears_of_an_end_without_an_owner(client, connection):
    job, _claim, heard, reader = await followed(client, connection)
    result = asyncio.create_task(client.result(job.id))
    await asyncio.sleep(0.1)
    await connection.delete(client._keys.stream(job.id))  # the server comes back without the token, the worker does not
    await connection.hset(client._keys.job(job.id), "n", 0)
    await job.cancel()
    await connection.zadd("{c00}:L", {job.id: 1})
    await run(connection, fake.CELL.reap())
    await asyncio.wait_for(reader, STALL_S)
    assert heard[-1].end.status is JobStatus.CANCELLED
    assert (await asyncio.wait_for(result, STALL_S)).status is JobStatus.CANCELLED


async def test_a_refusal_is_an_error_of_this_package(client, connection):
    await connection.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(OctavoError):
            await client.submit("a", model=fake.MODEL)
    finally:
        await connection.config_set("min-replicas-to-write", 0)


@pytest.mark.parametrize("fields", [{"prompt": "\ud800"}, {"prompt": "x", "top_k": 1 << 64}])
async def test_what_cannot_be_written_is_refused(client, fields):
    with pytest.raises(OctavoError):
        await client.submit(fields.pop("prompt"), model=fake.MODEL, **fields)


async def test_a_bad_request_spoils_no_other(client):
    requests = [JobRequest(model=fake.MODEL, prompt="x")] * 99 + [JobRequest(model=fake.MODEL, prompt="\ud800")]
    answers = await client.submit_many(requests)
    assert sum(isinstance(answer, OctavoError) for answer in answers) == 1


async def test_two_tenants_never_share_an_idempotency_key(redis_url, connection):
    async with AsyncClient(redis_url, tenant="a") as one, AsyncClient(redis_url, tenant="a:b") as two:
        first = await one.submit("p", model=fake.MODEL, idempotency_key="b:c")
        with pytest.raises(InvalidRequest, match="tenant"):
            await two.submit("p", model=fake.MODEL, idempotency_key="c")
    assert first.created


async def test_what_was_accepted_before_the_server_went_away_is_known(tmp_path, monkeypatch):
    with EmbeddedServer(data_dir=tmp_path) as server:
        async with AsyncClient(server.url) as client, connect(server.url) as connection:
            await fake.register(connection)
            one = client._submit_batch

            async def then_lost(*batch):
                answers = await one(*batch)
                server.kill()
                return answers

            monkeypatch.setattr(client, "_submit_batch", then_lost)
            answers = await client.submit_many([JobRequest(model=fake.MODEL, prompt="x")] * 100)
    accepted = [isinstance(answer, AsyncJob) for answer in answers]
    assert accepted == [True] * 64 + [False] * 36
    assert all(isinstance(answer, ServerUnavailable) for answer in answers[64:])
