"""The client against the real server, with a worker that needs no model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fake_worker as fake
import pytest
import redis.asyncio
from fake_worker import expected
from killable_server import killable_service
from loading_server import loading_server
from waiting import STALL_S, until

from octavo import (
    AsyncClient,
    IdempotencyConflict,
    InvalidRequest,
    JobFailed,
    JobNotFound,
    JobRequest,
    JobStatus,
    Limits,
    QueueFull,
    Retention,
    SamplingParams,
    ServerUnavailable,
    UnknownModel,
)
from octavo.queue.calls import run

NOBODY = "g00_00000000000000000000000000"


async def tokens(stream: Any) -> list[int]:
    return [token async for event in stream for token in event.token_ids]


async def stored(job: Any, count: int) -> None:
    while (await job.info()).tokens < count:  # noqa: ASYNC110 - the server is another process
        await asyncio.sleep(0.02)


async def test_submit_stream_result(client: AsyncClient, connection: Any) -> None:
    async with fake.fake_worker(connection):
        job = await client.submit("hi", model="toy", max_tokens=20, seed=7)
        events = [event async for event in job.stream()]
    assert [event.offset for event in events] == list(range(1, 21))
    assert [t for e in events for t in e.token_ids] == expected("hi", 7, 20)
    result = await job.result(timeout=STALL_S)
    assert result.token_ids == tuple(expected("hi", 7, 20))
    assert result.text == "".join(event.text for event in events)
    assert (result.status, result.sequences[0].finish_reason) == (JobStatus.COMPLETED, "length")
    assert result.usage.completion_tokens == 20


async def test_a_stream_can_be_read_from_anywhere_by_anyone_at_any_time(client: AsyncClient, connection: Any) -> None:
    job = await client.submit("hi", model="toy", max_tokens=30, seed=1)
    readers = [asyncio.create_task(tokens(client.job(job.id).stream(after))) for after in (0, 0, 7, 29, 30)]
    async with fake.fake_worker(connection, step=4):
        live = await asyncio.gather(*readers)
    want = expected("hi", 1, 30)
    assert live == [want, want, want[7:], want[29:], []]
    assert await tokens(job.stream(after=13)) == want[13:]
    await connection.delete(client._keys.stream(job.id))  # as if it had expired before the result
    assert await tokens(job.stream(after=13)) == want[13:]
    assert (await job.result()).token_ids == tuple(want)
    await connection.delete(client._keys.result(job.id))
    with pytest.raises(JobNotFound):
        await tokens(job.stream())


async def test_many_streams_share_a_constant_number_of_connections(client: AsyncClient, connection: Any) -> None:
    requests = [
        JobRequest(model="toy", prompt=f"p{i}", sampling=SamplingParams(max_tokens=12, seed=i)) for i in range(300)
    ]
    jobs = await client.submit_many(requests)
    before = int((await connection.info("clients"))["connected_clients"])
    readers = [asyncio.create_task(tokens(job.stream())) for job in jobs]
    await asyncio.sleep(0.2)
    async with fake.fake_worker(connection, capacity=100, delay=0.005):
        streamed = await asyncio.wait_for(asyncio.gather(*readers), STALL_S)
        during = int((await connection.info("clients"))["connected_clients"])
    assert streamed == [expected(f"p{i}", i, 12) for i in range(300)]
    assert during - before <= 33  # the worker's pool of 16, the client's of 16, one that listens


async def test_a_slow_reader_falls_back_to_paging_and_misses_nothing(client: AsyncClient, connection: Any) -> None:
    job = await client.submit("hi", model="toy", max_tokens=1500, seed=3)
    seen: list[int] = []
    async with fake.fake_worker(connection, delay=0):
        async for event in job.stream():
            seen += event.token_ids
            if len(seen) == 1:
                await stored(job, 1000)  # far more than a buffer holds
    assert seen == expected("hi", 3, 1500)


async def test_a_message_lost_on_the_way_is_found_by_the_poll(client: AsyncClient, connection: Any) -> None:
    job = await client.submit("hi", model="toy", max_tokens=5, seed=3)
    reader = asyncio.create_task(tokens(job.stream()))
    await asyncio.sleep(0.1)
    await connection.hdel(client._keys.job(job.id), "gw")  # no reader is told any more
    async with fake.fake_worker(connection):
        assert await asyncio.wait_for(reader, STALL_S) == expected("hi", 3, 5)


async def test_a_bad_end_raises_from_stream_and_result_and_is_an_event_of_events(
    client: AsyncClient, connection: Any
) -> None:
    async with fake.fake_worker(connection):
        job = await client.submit("fail 3", model="toy", max_tokens=9, seed=3)
        stream = job.stream()
        seen = [token for _ in range(3) for token in (await anext(stream)).token_ids]
        with pytest.raises(JobFailed, match="it broke") as caught:
            await anext(stream)
    assert seen == expected("fail 3", 3, 3)
    assert (caught.value.status, caught.value.code) == ("failed", "engine_error")
    with pytest.raises(JobFailed):
        await job.result()
    ends = [event.end async for event in job.events() if event.end]
    assert [(end.status, end.error.code if end.error else None) for end in ends] == [(JobStatus.FAILED, "engine_error")]
    assert (await client.result(job.id)).token_ids == tuple(seen)
    assert (await job.info()).error == ends[0].error


async def test_cancel_ends_queued_and_running_jobs(client: AsyncClient, connection: Any) -> None:
    queued = await client.submit("a", model="toy")
    assert await queued.cancel() == JobStatus.CANCELLED
    with pytest.raises(JobFailed, match="cancelled"):
        await queued.result(timeout=1)
    running = await client.submit("b", model="toy", max_tokens=100_000)
    async with fake.fake_worker(connection):
        async for _ in running.events():
            break
        assert await running.cancel() == JobStatus.RUNNING
        result = await client.result(running.id, timeout=STALL_S)
    assert result.status == JobStatus.CANCELLED
    assert 0 < len(result.token_ids) < 1000


async def test_leaving_a_stream_detaches(client: AsyncClient, connection: Any) -> None:
    job = await client.submit("a", model="toy", max_tokens=100_000)
    async with fake.fake_worker(connection):
        stream = job.events()
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        for _ in range(100):
            if not await connection.hexists(client._keys.job(job.id), "gw"):
                break
            await asyncio.sleep(0.01)
        assert not await connection.hexists(client._keys.job(job.id), "gw")
        await job.cancel()


async def test_result_gives_up_waiting_but_not_the_job(client: AsyncClient) -> None:
    job = await client.submit("a", model="toy")
    with pytest.raises(TimeoutError, match="it goes on"):
        await job.result(timeout=0.05)
    assert (await job.info()).status == JobStatus.QUEUED


async def test_submit_many_puts_errors_in_their_place(redis_url: str, connection: Any) -> None:
    async with AsyncClient(redis_url, limits=Limits(queued_jobs=2)) as client:
        known, unknown = JobRequest(model="toy", prompt="a"), JobRequest(model="nope", prompt="a")
        first, second, third, fourth = await client.submit_many([known, unknown, known, known])
        assert isinstance(second, UnknownModel)
        assert isinstance(fourth, QueueFull)
        assert {first.id, third.id} == {info.id for info in await client.jobs()}
        with pytest.raises(ValueError, match="idempotency keys"):
            await client.submit_many([known], idempotency_keys=[])


async def test_idempotency_keys(client: AsyncClient) -> None:
    first = await client.submit("a", model="toy", idempotency_key="k")
    again = await client.submit("a", model="toy", idempotency_key="k")
    assert (first.created, again.created, again.id) == (True, False, first.id)
    with pytest.raises(IdempotencyConflict):
        await client.submit("b", model="toy", idempotency_key="k")


async def test_wrong_arguments_name_the_field_and_not_the_prompt(client: AsyncClient) -> None:
    for fields, param in (
        ({"temperature": 9}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"no_such": 1}, "no_such"),
        ({"messages": [{"role": "pope", "content": "secret"}]}, "messages.0.role"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            await client.submit(None if "messages" in fields else "secret", model="toy", **fields)
        assert caught.value.param == param
        assert "secret" not in str(caught.value)
    with pytest.raises(InvalidRequest, match="not both"):
        await client.submit("a", model="toy", sampling=SamplingParams(), top_k=3)
    with pytest.raises(InvalidRequest, match="exactly one"):
        await client.submit(model="toy")


async def test_jobs_are_listed_newest_first_by_page_and_filter(client: AsyncClient) -> None:
    ids = []
    for i in range(5):
        ids.append((await client.submit("a", model="toy", tenant=f"t{i % 2}", metadata={"i": str(i)})).id)
        await asyncio.sleep(0.002)
    await client.cancel(ids[0])
    listed = await client.jobs()
    assert [info.id for info in listed] == ids[::-1]
    assert listed[0].metadata == {"i": "4"}
    assert abs(listed[0].created_at - time.time()) < 5
    assert [info.id for info in await client.jobs(limit=2)] == [ids[4], ids[3]]
    assert [info.id for info in await client.jobs(limit=2, after=ids[3])] == [ids[2], ids[1]]
    assert [info.id for info in await client.jobs(tenant="t1")] == [ids[3], ids[1]]
    assert [info.id for info in await client.jobs(status=JobStatus.CANCELLED)] == [ids[0]]


async def test_jobs_without_a_seed_have_seeds_of_their_own(
    client: AsyncClient, connection: redis.asyncio.Redis
) -> None:
    jobs = [await client.submit("a", model="toy") for _ in range(2)]
    jobs.append(await client.submit("a", model="toy", seed=5))
    first, second, given = [await connection.hget(f"{{c00}}:j:{job.id}", "seed") for job in jobs]
    assert len({first, second, given}) == 3
    assert given == b"5"


async def test_a_stream_that_has_expired_is_no_empty_result(
    client: AsyncClient, connection: redis.asyncio.Redis
) -> None:
    job = await client.submit("a", model="toy")
    await job.cancel()
    assert (await client.result(job.id)).status is JobStatus.CANCELLED
    await connection.delete(f"{{c00}}:t:{job.id}")
    for ask in (client.result, client.outcome):
        with pytest.raises(JobNotFound, match="expired"):
            await ask(job.id)


async def test_models_workers_and_depths(client: AsyncClient, connection: Any) -> None:
    assert [card.name for card in await client.models()] == ["toy"]
    assert await client.workers() == []
    job = await client.submit("a", model="toy")
    assert await client.queue_depths() == {"toy": 1}
    async with fake.fake_worker(connection):
        await job.result(timeout=STALL_S)
        assert [worker.id for worker in await client.workers()] == ["fake"]
    assert await client.queue_depths() == {"toy": 0}


async def test_jobs_that_do_not_exist(client: AsyncClient) -> None:
    for job_id in (NOBODY, NOBODY + "0", "nonsense", "g00_!!!!!!!!!!!!!!!!!!!!!!!!!!"):
        job = client.job(job_id)
        for use in (job.info(), job.cancel(), job.result(), anext(job.events()), anext(job.stream())):
            with pytest.raises(JobNotFound):
                await use


async def test_an_unreachable_server_is_a_clear_error_without_the_password() -> None:
    async with AsyncClient("redis://user:hunter2@127.0.0.1:1/0") as client:
        for use in (client.models(), client.submit("a", model="toy"), anext(client.events(NOBODY))):
            with pytest.raises(ServerUnavailable, match="octavo up") as caught:
                await use
            assert "hunter2" not in str(caught.value)


async def test_a_server_that_is_still_loading_is_not_one_to_start(tmp_path: Path) -> None:
    with loading_server(tmp_path) as url:
        async with AsyncClient(url) as client:
            for use in (client.models(), client.submit("a", model="toy"), anext(client.events(NOBODY))):
                with pytest.raises(ServerUnavailable, match="still loading"):
                    await use


async def test_streams_outlive_restarts_of_the_server(tmp_path: Path) -> None:
    async with killable_service(tmp_path) as (server, client, connection):
        job = await client.submit("hi", model="toy", max_tokens=40, seed=5)
        reader = asyncio.create_task(tokens(job.stream()))
        claim = await fake.claimed(connection)
        want = expected("hi", 5, 40)
        for offset in range(40):
            if offset % 10 == 5:
                server.restart()
            chunk = fake.chunk_of([want[offset]], last=offset == 39)
            call = fake.CELL.append([fake.Append(job.id, claim.token, offset, chunk)])
            (reply,) = await fake.run(connection, call)
            assert (reply.state, reply.offset) == ("ok", offset + 1)
            await asyncio.sleep(0.01)
        server.restart()
        terminal = fake.Terminal(status=JobStatus.COMPLETED, usage=fake.Usage(completion_tokens=40))
        assert await fake.run(connection, fake.CELL.finish(job.id, claim.token, terminal, b"unused"))
        assert await asyncio.wait_for(reader, STALL_S) == want


def test_importing_octavo_imports_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "fastapi", "starlette", "celery", "typer", "rich", "uvicorn"}
    program = f"import sys, octavo; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def give_up(connection: redis.asyncio.Redis, job_id: str) -> None:
    """As if three workers had crashed over it."""
    for _ in range(3):
        call = fake.CELL.claim(fake.MODEL, "w", max_jobs=1, max_tokens=1 << 20, lease_ms=5000, idle=True)
        (claim,) = (await run(connection, call)).jobs
        assert claim.job_id == job_id
        await run(connection, fake.CELL.release([(job_id, claim.token)], why="crashed"))


async def test_a_job_that_was_given_up_is_listed_and_goes_on_as_a_new_one(
    client: AsyncClient, connection: redis.asyncio.Redis
) -> None:
    asked = {"metadata": {"a": "b"}, "notify": True}
    job = await client.submit("again", model=fake.MODEL, max_tokens=5, tenant="acme", key_id="key_1", **asked)
    await give_up(connection, job.id)
    (letter,) = await client.dead_letters()
    assert (letter.job_id, letter.reason, letter.worker, letter.attempts) == (job.id, "dead_lettered", "w", 3)
    seed = int((await connection.hget(f"{{c00}}:j:{job.id}", "seed")) or -1)
    again = await client.requeue(job.id)
    assert (again.id != job.id, (await client.requeue(job.id)).id) == (True, again.id)
    assert await client.dead_letters() == []
    assert await connection.hmget(f"{{c00}}:j:{again.id}", "key", "nf") == [b"key_1", b"job"]
    async with fake.fake_worker(connection):
        result = await again.result(timeout=STALL_S)
    assert list(result.token_ids) == expected("again", seed, 5)
    info = await again.info()
    assert (info.tenant, info.metadata) == ("acme", {"a": "b"})
    assert (await job.info()).status is JobStatus.FAILED


async def test_only_what_was_given_up_is_requeued(client: AsyncClient) -> None:
    job = await client.submit("x", model=fake.MODEL)
    with pytest.raises(InvalidRequest, match="octavo jobs dead"):
        await client.requeue(job.id)
    with pytest.raises(JobNotFound):
        await client.requeue(NOBODY)
    await client.cancel(job.id)
    with pytest.raises(InvalidRequest, match="octavo jobs dead"):
        await client.requeue(job.id)


async def test_a_tenant_s_list_reads_no_other_tenant_s_jobs(
    client: AsyncClient, connection: redis.asyncio.Redis
) -> None:
    request = JobRequest(model=fake.MODEL, prompt="x")
    (own,) = await client.submit_many([request], tenant="small")
    await client.submit_many([request] * 500, tenant="smaller")
    (newest,) = await client.submit_many([request], tenant="small")
    await connection.config_resetstat()
    assert [info.id for info in await client.jobs(tenant="small", limit=5)] == [newest.id, own.id]
    assert len(await client.jobs(tenant="smaller", limit=3)) == 3
    assert await client.jobs(tenant="smal") == []
    assert (await connection.info("commandstats"))["cmdstat_hmget"]["calls"] == 2 + 3


async def test_a_forgotten_job_leaves_all_lists(redis_url: str, connection: redis.asyncio.Redis) -> None:
    retention = Retention(stream_s=1, result_s=1, idempotency_s=1)
    async with AsyncClient(redis_url, retention=retention) as client:
        await client.cancel((await client.submit("x", model=fake.MODEL, tenant="acme")).id)
        spoilt = await client.submit("x", model=fake.MODEL, tenant="acme", queue_timeout_s=0.1)
        await connection.hdel(f"{{c00}}:j:{spoilt.id}", "cost")

        async def left() -> list[bytes]:
            await client.reap()
            return list(await connection.zrange("{c00}:jobs", 0, -1))

        async def only_the_spoilt_one_is_left() -> bool:  # it is kept for a day
            return await left() == [f":acme:{spoilt.id}".encode(), spoilt.id.encode()]

        await until(only_the_spoilt_one_is_left)
        await until(lambda: connection.zscore("{c00}:x", f"{spoilt.id} acme"))
        await connection.zadd("{c00}:x", {f"{spoilt.id} acme": 1})
        assert await left() == []
        assert await connection.zcard("{c00}:x") == 0


async def test_a_damaged_job_spoils_no_list(client: AsyncClient, connection: redis.asyncio.Redis) -> None:
    bad, good = await client.submit("x", model=fake.MODEL), await client.submit("y", model=fake.MODEL)
    await connection.set(f"{{c00}}:j:{bad.id}", "somebody else's")
    assert [info.id for info in await client.jobs()] == [good.id]
