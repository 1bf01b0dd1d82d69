"""Jobs that a server has accepted and then forgets; the real server, killed."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import fake_worker as fake
import msgspec
import pytest
import redis.asyncio
from killable_server import forgotten_by, killable_service
from waiting import STALL_S

from octavo import AsyncClient, JobNotFound, JobStatus
from octavo.client import submissions
from octavo.client.handles import AsyncJob
from octavo.queue import wire
from octavo.queue.calls import run
from octavo.queue.protocol import Claim
from octavo.terms.limits import Retention
from octavo.terms.models import Event
from octavo_worker.agent.ends import Ends


@pytest.fixture(autouse=True)
def pings_follow_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "_PING_S", 0.1)


async def submit(client: AsyncClient, prompt: str, **fields: object) -> AsyncJob:
    return await client.submit(prompt, model=fake.MODEL, max_tokens=20, seed=3, **fields)


async def tokens(job: AsyncJob) -> list[int]:
    return [token async for event in job.stream() for token in event.token_ids]


async def listed(client: AsyncClient, count: int) -> set[str]:
    """The ids of all jobs, once there are so many."""
    async with asyncio.timeout(STALL_S):
        while len(jobs := await client.jobs()) < count:  # noqa: ASYNC110 - the server is another process
            await asyncio.sleep(0.02)
    return {job.id for job in jobs}


async def ended(client: AsyncClient, job: AsyncJob, status: JobStatus) -> None:
    """Once it has, by the reaper's hand."""
    async with asyncio.timeout(STALL_S):
        while not (info := await job.info()).status.is_terminal:
            await client.reap()
            await asyncio.sleep(0.1)
    assert info.status is status


@pytest.mark.parametrize("follow", [False, True])
async def test_its_readers_do_not_notice(tmp_path: Path, follow: bool) -> None:
    async with killable_service(tmp_path) as (server, client, connection):
        with forgotten_by(server, tmp_path):
            job = await submit(client, "a", follow=follow)
            reader = asyncio.create_task(tokens(job))
            async with fake.fake_worker(connection, delay=0.01):
                while (await job.info()).tokens < 5:  # noqa: ASYNC110 - the server is another process
                    await asyncio.sleep(0.01)
        assert not reader.done()
        async with fake.fake_worker(connection):
            assert await asyncio.wait_for(reader, STALL_S) == fake.expected("a", 3, 20)
            result = await job.result(timeout=STALL_S)
        assert list(result.token_ids) == fake.expected("a", 3, 20)


async def test_sequences_may_come_in_another_order_the_second_time(tmp_path: Path) -> None:
    heard: dict[int, list[int]] = {0: [], 1: []}
    offsets = [0]

    async def listen(job: AsyncJob) -> None:
        async for event in job.events():
            heard[event.index] += event.token_ids
            offsets.append(event.offset)

    async with killable_service(tmp_path) as (server, client, connection):
        with forgotten_by(server, tmp_path):
            job = await client.submit("a", model=fake.MODEL, max_tokens=5, n=2)
            reader = asyncio.create_task(listen(job))
            await write(connection, (0, [1, 2, 3]), (1, [11]))
            while len(offsets) < 3:  # noqa: ASYNC110 - the server is another process
                await asyncio.sleep(0.01)
        await listed(client, 1)
        claim = await write(connection, (0, [1]), (1, [11, 12, 13]), (0, [2, 3, 4, 5]), (1, [14, 15]))
        terminal = fake.Terminal(status=JobStatus.COMPLETED, usage=fake.Usage(completion_tokens=10))
        assert await run(connection, fake.CELL.finish(job.id, claim.token, terminal, b"unused"))
        await asyncio.wait_for(reader, STALL_S)
    assert heard == {0: [1, 2, 3, 4, 5], 1: [11, 12, 13, 14, 15]}
    assert offsets == sorted(offsets)
    assert offsets[-1] == 10


async def write(connection: redis.asyncio.Redis, *chunks: tuple[int, list[int]]) -> Claim:
    """Claims the job that waits and stores these tokens of these sequences."""
    claim = await fake.claimed(connection)
    offset = 0
    for index, tokens in chunks:
        chunk = msgspec.structs.replace(fake.chunk_of(tokens, last=False), index=index)
        (reply,) = await run(connection, fake.CELL.append([fake.Append(claim.job_id, claim.token, offset, chunk)]))
        assert reply.state == "ok"
        offset = reply.offset
    return claim


async def test_it_has_them_again_although_nobody_asks(tmp_path: Path) -> None:
    async with killable_service(tmp_path) as (server, client, _):
        with forgotten_by(server, tmp_path):
            jobs = [await submit(client, str(i)) for i in range(70)]
            cancelled = await submit(client, "no more")
            await cancelled.cancel()
        assert await listed(client, len(jobs) + 1) == {job.id for job in (*jobs, cancelled)}
        await ended(client, cancelled, JobStatus.CANCELLED)


async def test_one_that_is_refused_at_first_is_submitted_until_it_is_taken(tmp_path: Path) -> None:
    async with killable_service(tmp_path) as (server, client, connection):
        with forgotten_by(server, tmp_path):
            await fake.register(connection, "late")
            job = await client.submit("a", model="late")
        await asyncio.sleep(0.5)  # pings, and answers that there is no such model
        assert await client.jobs() == []
        await fake.register(connection, "late")
        assert await listed(client, 1) == {job.id}


@pytest.mark.parametrize("ask", ["info", "result", "stream"])
async def test_a_reader_that_asks_at_once_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    monkeypatch.setattr(submissions, "_PING_S", 60.0)
    async with killable_service(tmp_path) as (server, client, connection):
        with forgotten_by(server, tmp_path):
            job = await submit(client, "a")
        async with fake.fake_worker(connection):
            if ask == "info":
                assert (await job.info()).id == job.id
            elif ask == "result":
                assert list((await job.result(timeout=STALL_S)).token_ids) == fake.expected("a", 3, 20)
            else:
                assert await asyncio.wait_for(tokens(job), STALL_S) == fake.expected("a", 3, 20)


@pytest.mark.parametrize("known_again", [False, True])
async def test_one_that_is_forgotten_while_its_reader_looks_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_again: bool
) -> None:
    """Between two commands the server goes away and comes back without the job. Before the next one it may have been
    told of it."""
    async with killable_service(tmp_path) as (server, client, connection):
        with ExitStack() as stack:
            stack.enter_context(forgotten_by(server, tmp_path))
            job = await submit(client, "a", follow=False)
            attach, forgotten = client._subscriber._attach, asyncio.Event()

            async def attach_and_forget(reader: Any) -> bool:
                known = await attach(reader)
                stack.close()  # the first time only
                forgotten.set()
                return known

            exists = client._subscriber._exists

            async def tell_and_look(reader: Any) -> bool:
                if known_again:
                    await client._submissions.restore(reader.job_id)
                return await exists(reader)

            monkeypatch.setattr(client._subscriber, "_attach", attach_and_forget)
            monkeypatch.setattr(client._subscriber, "_exists", tell_and_look)
            reading = asyncio.create_task(tokens(job))
            await asyncio.wait_for(forgotten.wait(), STALL_S)
            async with fake.fake_worker(connection):
                assert await asyncio.wait_for(reading, STALL_S) == fake.expected("a", 3, 20)


async def test_what_it_still_knows_is_not_made_again(tmp_path: Path) -> None:
    async with killable_service(tmp_path) as (server, client, connection):
        async with fake.fake_worker(connection):
            job = await submit(client, "a")
            await job.result(timeout=STALL_S)
        before = await job.info()
        server.restart()
        other = await submit(client, "b")
        await asyncio.sleep(0.5)  # pings
        assert await job.info() == before
        assert await listed(client, 2) == {job.id, other.id}
        assert await client.queue_depths() == {fake.MODEL: 1}


async def test_what_was_written_long_ago_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "_WRITTEN_S", 0.1)
    async with killable_service(tmp_path) as (server, client, _):
        with forgotten_by(server, tmp_path):
            job = await submit(client, "a")
            while client._submissions._kept:  # noqa: ASYNC110 - until it has been a while
                await asyncio.sleep(0.02)
        with pytest.raises(JobNotFound):
            await job.info()
        again = await submit(client, "b")  # and so on with the next one
        with forgotten_by(server, tmp_path):
            later = await submit(client, "c")
        assert {again.id, later.id} <= await listed(client, 2)


async def test_what_may_have_expired_is_not_made_again(tmp_path: Path) -> None:
    async with killable_service(tmp_path, Retention(stream_s=1, result_s=1, idempotency_s=1)) as (
        server,
        client,
        connection,
    ):
        job = await submit(client, "a")
        async with fake.fake_worker(connection):
            await job.result(timeout=STALL_S)
        await asyncio.sleep(1.2)
        await client.reap()
        server.restart()
        await asyncio.sleep(0.5)  # pings, of which the first does not come back
        with pytest.raises(JobNotFound):
            await job.info()
        assert await client.jobs() == []


async def test_a_reader_of_another_client_hears_it_to_its_end(tmp_path: Path) -> None:
    async with killable_service(tmp_path) as (server, client, connection), AsyncClient(server.url) as other:
        with forgotten_by(server, tmp_path):
            job = await submit(client, "a")
            reader = asyncio.create_task(tokens(other.job(job.id)))
            async with fake.fake_worker(connection, delay=0.01):
                while (await job.info()).tokens < 5:  # noqa: ASYNC110 - the server is another process
                    await asyncio.sleep(0.01)
        async with fake.fake_worker(connection):
            assert await asyncio.wait_for(reader, STALL_S) == fake.expected("a", 3, 20)
            assert (await other.info(job.id)).id == job.id


async def test_cancelling_what_has_completed_forgets_nothing(tmp_path: Path) -> None:
    async with killable_service(tmp_path) as (server, client, connection):
        with forgotten_by(server, tmp_path):
            job = await submit(client, "a")
            async with fake.fake_worker(connection):
                await job.result(timeout=STALL_S)
            assert await job.cancel() is JobStatus.COMPLETED
        async with fake.fake_worker(connection):
            assert list((await job.result(timeout=STALL_S)).token_ids) == fake.expected("a", 3, 20)


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_an_end_that_was_told_stands(tmp_path: Path, how: str) -> None:
    """The server forgets it, and by now the job is cancelled or past its deadline."""
    async with killable_service(tmp_path) as (server, client, connection):
        job = await submit(client, "a", timeout_s=1.5)
        ends = Ends(connection, fake.CELL)
        await ends.answered_by((await run(connection, fake.CELL.reap())).server)
        with forgotten_by(server, tmp_path):
            claim = await write(connection, (0, [1, 2, 3]))
            terminal = fake.Terminal(status=JobStatus.COMPLETED, usage=fake.Usage(completion_tokens=3))
            chunks = [fake.chunk_of([1, 2, 3], last=True)]
            call = fake.CELL.finish(job.id, claim.token, terminal, wire.encode_result(terminal, chunks))
            assert await run(connection, call)
            ends.keep(call)
            assert await tokens(job) == [1, 2, 3]
            await asyncio.sleep(1.5)
        await client.reap()
        if how == "cancelled":
            assert await job.cancel() is JobStatus.QUEUED
        await ends.answered_by((await run(connection, fake.CELL.reap())).server)
        assert (await job.info()).status is JobStatus.COMPLETED
        assert await tokens(job) == [1, 2, 3]
        assert list((await job.result(timeout=STALL_S)).token_ids) == [1, 2, 3]
        await client.reap()


@pytest.mark.parametrize("lost", ["all of it", "its tokens", "nothing"])
async def test_an_offset_into_several_sequences_holds_or_the_reader_is_told(tmp_path: Path, lost: str) -> None:
    async with killable_service(tmp_path) as (server, client, connection):
        if lost != "all of it":
            job = await client.submit("a", model=fake.MODEL, max_tokens=5, n=2)
        with nullcontext() if lost == "nothing" else forgotten_by(server, tmp_path):
            if lost == "all of it":
                job = await client.submit("a", model=fake.MODEL, max_tokens=5, n=2)
            claim = await write(connection, (0, [1, 2, 3]), (1, [11]))
        if lost != "nothing":
            await listed(client, 1)
            claim = await write(connection, (0, [1]), (1, [11, 12, 13]))
        terminal = fake.Terminal(status=JobStatus.COMPLETED, usage=fake.Usage(completion_tokens=4))
        assert await run(connection, fake.CELL.finish(job.id, claim.token, terminal, b"unused"))
        events = [event async for event in client.events(job.id, 3)]
        heard = [(event.index, *event.token_ids) for event in events if event.chunk]
        if lost == "nothing":
            assert (events[0].reset, heard) == (False, [(1, 11)])
        else:
            assert (events[0].reset, events[0].offset, heard) == (True, 0, [(0, 1), (1, 11, 12, 13)])


async def test_a_resumed_reader_of_several_sequences_is_told_when_the_order_may_change(tmp_path: Path) -> None:
    async with killable_service(tmp_path) as (server, client, connection):
        heard: list[Event] = []

        async def listen() -> None:
            async for event in client.events(job.id, 1):
                heard.append(event)

        with forgotten_by(server, tmp_path):
            job = await client.submit("a", model=fake.MODEL, max_tokens=5, n=2)
            await write(connection, (0, [1]), (0, [2]))
            reader = asyncio.create_task(listen())
            while not heard:  # noqa: ASYNC110 - the server is another process
                await asyncio.sleep(0.01)
        await listed(client, 1)
        claim = await write(connection, (1, [11]), (0, [1]), (0, [2]))
        terminal = fake.Terminal(status=JobStatus.COMPLETED, usage=fake.Usage(completion_tokens=3))
        assert await run(connection, fake.CELL.finish(job.id, claim.token, terminal, b"unused"))
        await asyncio.wait_for(reader, STALL_S)
        told = [event.reset for event in heard].index(True)
        assert [event.token_ids for event in heard[:told]] == [(2,)]
        assert [(event.index, event.token_ids) for event in heard[told + 1 : -1]] == [(1, (11,)), (0, (1,)), (0, (2,))]
