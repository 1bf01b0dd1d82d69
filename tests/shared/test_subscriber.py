"""Streams that begin with the job itself, whatever comes late, early, twice or not at all; against the real server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import fake_worker as fake
import pytest
import redis.asyncio
from fake_worker import claimed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples
from waiting import STALL_S

from octavo import AsyncClient, Event, JobStatus, UnknownModel
from octavo.client import asynchronous as client_module
from octavo.client import subscriber as subscriber_module
from octavo.client.reader import Reader
from octavo.queue.calls import run
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, Claim
from octavo.queue.streams import PAGE
from octavo.terms.messages import Progress
from octavo.terms.positions import Position


@pytest.fixture
async def client(client: AsyncClient) -> AsyncClient:
    await listening(client)
    return client


async def listening(client: AsyncClient) -> None:
    """Until messages reach the client: a first stream makes it listen."""
    job = await client.submit("first", model=fake.MODEL, follow=True)
    while not client._subscriber._hearing:  # noqa: ASYNC110 - the server is another process
        await asyncio.sleep(0.002)
    await job.cancel()
    await collected(job.events())


async def append(connection: redis.asyncio.Redis, claim: Claim, start: int, tokens: Sequence[int]) -> None:
    item = fake.Append(claim.job_id, claim.token, start, fake.chunk_of(list(tokens), last=False))
    (reply,) = await run(connection, fake.CELL.append([item]))
    assert reply.state == "ok"


async def finish(connection: redis.asyncio.Redis, claim: Claim, tokens: int) -> None:
    terminal = fake.Terminal(status=JobStatus.COMPLETED, usage=fake.Usage(completion_tokens=tokens))
    assert await run(connection, fake.CELL.finish(claim.job_id, claim.token, terminal, b"unused"))


async def collected(events: Any) -> list[Event]:
    return [event async for event in events]


def assert_whole(events: list[Event], total: int) -> None:
    offset = 0
    for event in events[:-1]:
        offset += len(event.token_ids)
        assert event.offset == offset, "a gap or a repeat"
    assert [token for event in events for token in event.token_ids] == list(range(total))
    assert events[-1].end is not None
    assert events[-1].end.status is JobStatus.COMPLETED


async def reads_of_streams(connection: redis.asyncio.Redis) -> int:
    return int((await connection.info("commandstats")).get("cmdstat_xrange", {"calls": 0})["calls"])


async def test_a_stream_that_is_followed_from_the_start_is_never_read(client: AsyncClient, connection: Any) -> None:
    job = await client.submit("hi", model=fake.MODEL, follow=True)
    before = await reads_of_streams(connection)
    claim = await claimed(connection)
    reader = asyncio.create_task(collected(job.events()))
    for token in range(5):
        await append(connection, claim, token, [token])
    await finish(connection, claim, 5)
    assert_whole(await asyncio.wait_for(reader, STALL_S), 5)
    assert await reads_of_streams(connection) == before
    again = await collected(job.events())  # only the first reader was expected
    assert_whole(again, 5)
    assert await reads_of_streams(connection) > before


async def test_a_job_may_be_over_before_the_reply_to_its_submission(
    client: AsyncClient, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow_reply(*arguments: Any) -> Any:
        replies = await run_many(*arguments)
        claim = await claimed(connection)
        await append(connection, claim, 0, [0, 1])
        await finish(connection, claim, 2)
        (reader,) = client._subscriber._expected.values()
        while len(reader.live) < 2:  # noqa: ASYNC110 - the server is another process
            await asyncio.sleep(0.002)
        return replies

    run_many = client_module.run_many
    monkeypatch.setattr(client_module, "run_many", slow_reply)
    job = await client.submit("hi", model=fake.MODEL, follow=True)
    before = await reads_of_streams(connection)
    assert_whole(await asyncio.wait_for(collected(job.events()), STALL_S), 2)
    assert await reads_of_streams(connection) == before


async def test_an_unread_stream_is_forgotten_and_can_still_be_read(client: AsyncClient, connection: Any) -> None:
    job = await client.submit("hi", model=fake.MODEL, follow=True)
    assert await connection.hexists(client._keys.job(job.id), "gw")
    async with asyncio.timeout(STALL_S):
        while await connection.hexists(client._keys.job(job.id), "gw"):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
    assert not client._subscriber._readers
    claim = await claimed(connection)
    await append(connection, claim, 0, [0])
    await finish(connection, claim, 1)
    assert_whole(await asyncio.wait_for(collected(job.events()), STALL_S), 1)


async def test_a_refused_submission_leaves_nothing_behind(client: AsyncClient, connection: Any) -> None:
    known = await client.submit("hi", model=fake.MODEL, idempotency_key="k")
    again = await client.submit("hi", model=fake.MODEL, idempotency_key="k", follow=True)
    assert (again.id, again.created) == (known.id, False)
    with pytest.raises(UnknownModel):
        await client.submit("hi", model="nope", follow=True)
    assert not client._subscriber._expected


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=8),
    asked=st.integers(0, 9),
    lost=st.sets(st.integers(0, 7)),
    twice=st.sets(st.integers(0, 7)),
    reconnect=st.integers(0, 12),
    warm=st.booleans(),
)
def test_whatever_is_lost_repeated_or_early_the_stream_is_whole(
    redis_url: str, sizes: list[int], asked: int, lost: set[int], twice: set[int], reconnect: int, warm: bool
) -> None:
    """Entry i is `sizes[i]` tokens. Its message may be lost or come twice; the connection that hears may break before
    one of them; the stream is asked for before entry `asked`, or when the job is over."""

    async def scenario() -> None:
        async with connect(redis_url) as connection, AsyncClient(redis_url) as client:
            await connection.flushdb()
            await fake.register(connection)
            if warm:
                await listening(client)
            heard = -1
            deliver = client._subscriber._deliver

            def unreliable(data: bytes) -> None:
                nonlocal heard
                heard += 1
                if heard not in lost or heard >= len(sizes):  # a lost end is what the poll is for, after a second
                    deliver(data)
                if heard in twice:
                    deliver(data)

            client._subscriber._deliver = unreliable  # type: ignore[method-assign]
            job = await client.submit("hi", model=fake.MODEL, follow=True)
            claim = await claimed(connection)
            reader: asyncio.Task[list[Event]] | None = None
            offset = 0
            for number, size in enumerate(sizes):
                if number == reconnect:
                    await connection.client_kill_filter(_type="pubsub")
                if number == asked:
                    reader = asyncio.create_task(collected(job.events()))
                await append(connection, claim, offset, range(offset, offset + size))
                offset += size
                await asyncio.sleep(0)
            await finish(connection, claim, offset)
            reader = reader or asyncio.create_task(collected(job.events()))
            assert_whole(await asyncio.wait_for(reader, STALL_S), offset)

    asyncio.run(scenario())


async def test_each_reconnect_starts_with_a_short_pause(
    client: AsyncClient, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve lost connections in a row: the pause does not grow from one to the next."""
    pauses: list[float] = []
    sleep, shortest = asyncio.sleep, subscriber_module._BACKOFF_S[0]

    async def noted(seconds: float) -> None:
        listens = asyncio.current_task() is client._subscriber._listening
        if listens and (seconds / shortest).is_integer():  # redis-py draws its own pauses at random
            pauses.append(seconds)
        await sleep(seconds)

    reader = asyncio.create_task(collected(client.job((await client.submit("hi", model=fake.MODEL)).id).events()))
    monkeypatch.setattr(asyncio, "sleep", noted)
    async with asyncio.timeout(STALL_S):
        for _ in range(12):
            while not client._subscriber._hearing:
                await sleep(0.002)
            before = len(pauses)
            await connection.client_kill_filter(_type="pubsub")
            while len(pauses) == before:
                await sleep(0.002)
    reader.cancel()
    assert pauses == [shortest] * 12


def told(tokens: int, attempt: int = 1) -> Progress:
    return Progress(attempt=attempt, tokens=tokens, score=-1.5, finished=2, text="so far")


async def test_a_reader_is_told_that_its_client_was_closed(redis_url: str, connection: Any) -> None:
    async with AsyncClient(redis_url) as client:
        job = await client.submit("a", model=fake.MODEL, max_tokens=9)
        readers = [asyncio.create_task(collected(job.events())) for _ in range(2)]
        await append(connection, await claimed(connection), 0, [7])
        await asyncio.sleep(0.2)  # they wait for the next token
    for reader in readers:
        with pytest.raises(RuntimeError, match="closed while it followed"):
            await asyncio.wait_for(reader, STALL_S)


async def test_a_stream_that_is_left_after_its_client_sends_nothing(redis_url: str, connection: Any) -> None:
    async with AsyncClient(redis_url) as client:
        job = await client.submit("a", model=fake.MODEL, max_tokens=9)
        await append(connection, await claimed(connection), 0, [7])
        stream = job.events()
        await anext(stream)
    before = asyncio.all_tasks()
    await stream.aclose()
    assert asyncio.all_tasks() == before


async def test_progress_reaches_readers_and_changes_nothing_of_the_stream(
    client: AsyncClient, connection: redis.asyncio.Redis
) -> None:
    job = await client.submit("x", model=fake.MODEL, follow=True)
    claim = await claimed(connection)
    early = job.events()
    for tokens in (1, 2):
        assert await run(connection, fake.CELL.progress(job.id, claim.token, told(tokens)))
    while (seen := await anext(early)).progress == told(1):
        pass  # each word may come by itself
    assert (seen.offset, seen.token_ids, seen.text, seen.progress) == (0, (), "", told(2))
    late = job.events()
    assert (await anext(late)).progress == told(2)
    assert (await job.info()).progress == told(2)
    assert not await run(connection, fake.CELL.progress(job.id, "somebody else's token", told(9)))
    await append(connection, claim, 0, [0, 1])
    await run(connection, fake.CELL.progress(job.id, claim.token, told(3)))
    await append(connection, claim, 2, [2])
    await finish(connection, claim, 3)
    for events in (early, late):
        rest = await collected(events)
        assert_whole([event for event in rest if event.progress is None], 3)
    assert (await job.info()).progress is None
    assert [event.progress for event in await collected(job.events())] == [None] * 3


async def test_progress_is_forgotten_when_the_job_is_given_back(
    client: AsyncClient, connection: redis.asyncio.Redis
) -> None:
    job = await client.submit("x", model=fake.MODEL)
    claim = await claimed(connection)
    await run(connection, fake.CELL.progress(job.id, claim.token, told(5)))
    await run(connection, fake.CELL.release([(job.id, claim.token)], why="back"))
    assert (await job.info()).progress is None
    assert not await run(connection, fake.CELL.progress(job.id, claim.token, told(6)))


def test_what_a_slow_reader_has_not_taken_stays_in_the_server() -> None:
    reader = Reader(Keys(), "g00_00000000000000000000000000", Position(), behind=False)
    for offset in range(1000):
        reader.offer(b"%d-0" % offset, b"")
    assert len(reader.live) <= 256


async def test_a_stream_of_several_pages_is_read_to_its_end_at_once(
    client: AsyncClient, connection: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber_module, "POLL_S", (3600.0, 3600.0))  # no poll makes up for a page
    job = await client.submit("a", model=fake.MODEL)
    claim = await claimed(connection)
    entry = fake.chunk_of([1], last=False)
    for start in range(0, 2 * PAGE, 64):
        await run(connection, fake.CELL.append([Append(job.id, claim.token, start + i, entry) for i in range(64)]))
    read = 0
    async for event in client.events(job.id):
        read = event.offset
        if read == 2 * PAGE:
            break
    assert read == 2 * PAGE


async def test_a_reader_that_leaves_takes_no_other_with_it(
    client: AsyncClient, connection: redis.asyncio.Redis
) -> None:
    job = await client.submit("a", model=fake.MODEL)
    claim = await claimed(connection)
    staying, leaving = client.events(job.id), client.events(job.id)
    reading = [asyncio.ensure_future(anext(stream)) for stream in (staying, leaving)]
    for offset in range(2):
        entry = Append(job.id, claim.token, offset, fake.chunk_of([offset], last=False))
        await run(connection, fake.CELL.append([entry]))
        if offset == 0:
            assert [event.offset for event in await asyncio.gather(*reading)] == [1, 1]
            await leaving.aclose()
    assert (await anext(staying)).offset == 2
