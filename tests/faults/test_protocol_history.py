"""Workers and the server are killed and stopped at random; the history of it all must show no trace of that."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import fake_worker as fake
import pytest
import redis.asyncio
from history import Accepted, History, violations
from history_fleet import Fleet, fleet_of
from killable_server import forgotten_by, killable_service
from tiers import size
from waiting import STALL_S, until

from octavo import AsyncClient, JobRequest, SamplingParams, ServerUnavailable
from octavo.queue.connection import connect
from octavo.queue.streams import parse_entries
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage


async def submit(client: AsyncClient, count: int, length: int, first: int = 0) -> History:
    requests = {
        i: JobRequest(model=fake.MODEL, prompt=f"p{i}", sampling=SamplingParams(max_tokens=length, seed=i))
        for i in range(first, first + count)
    }
    jobs = await client.submit_many([*requests.values()], tenant="t", idempotency_keys=[f"k{i}" for i in requests])
    tokens = [[fake.token_of(request, i, k) for k in range(length)] for i, request in requests.items()]
    return History({job.id: want for job, want in zip(jobs, tokens, strict=True)})  # type: ignore[union-attr]


async def busy(connection: redis.asyncio.Redis, count: int) -> None:
    """Wait until that many jobs run, or all that are left."""

    async def is_busy() -> bool:
        running, queued = await connection.hmget(fake.CELL.keys.counters, "running", "queued")
        return int(running or 0) >= count or queued is None

    await until(is_busy)


async def listen(client: AsyncClient, job_id: str, heard: dict[str, list[int]]) -> None:
    """A reader that stays to the end and notes every token it is given."""
    heard[job_id] = []
    while True:
        try:
            async for event in client.events(job_id, len(heard[job_id])):
                heard[job_id] += event.token_ids
            return
        except ServerUnavailable:  # it was down just when this reader began
            await asyncio.sleep(0.1)


async def reap(client: AsyncClient) -> None:
    while True:
        with suppress(ServerUnavailable):
            await client.reap()
        await asyncio.sleep(0.3)


async def collect(connection: redis.asyncio.Redis, history: History, fleet: Fleet) -> None:
    keys = fake.CELL.keys
    history.writes = fleet.writes()
    for job_id in history.reference:
        rows = await connection.xrange(keys.stream(job_id))
        entries = [(row[0].decode(), event) for row, event in zip(rows, parse_entries(rows, 0), strict=True)]
        history.streams[job_id] = [(entry_id, event.end or event.chunk) for entry_id, event in entries]  # type: ignore[misc]
        history.statuses[job_id] = (await connection.hget(keys.job(job_id), "st") or b"lost").decode()
    history.outbox = [(f[b"id"].decode(), f[b"st"].decode()) for _, f in await connection.xrange(keys.outbox)]
    counters = await connection.hgetall(keys.counters)
    history.counters = {name.decode(): int(value) for name, value in counters.items()}
    names = [name.decode() async for name in connection.scan_iter()]
    endless = [name for name in names if await connection.ttl(name) == -1]
    history.immortal_keys = {name.removeprefix(f"{keys.prefix}:") for name in endless}


@pytest.mark.full
async def test_kills_and_pauses_of_workers_and_server_leave_no_trace(tmp_path: Path) -> None:
    random.seed(20)
    jobs, rounds = size(600, quick=200), size(12, quick=4)
    async with killable_service(tmp_path) as (server, client, connection):
        history = await submit(client, jobs, 32)
        readers = [asyncio.create_task(listen(client, job, history.heard)) for job in history.reference]
        reaper = asyncio.create_task(reap(client))
        cancelled = random.sample(sorted(history.reference), 20)
        async with fleet_of(server.url, tmp_path / "logs", 4) as fleet:
            await busy(connection, 48)
            restarts = 0
            for round_ in range(rounds):
                await busy(connection, 48)  # else a kill may hit a worker that has only just begun to start
                fleet.kill_one()
                if round_ % 4 == 1:
                    await fleet.pause_one()
                if round_ % 4 == 3:
                    server.restart()
                    restarts += 1
                if round_ == 2:
                    await asyncio.gather(*(client.cancel(job) for job in cancelled))
                await asyncio.sleep(random.uniform(0.2, 0.8))
            disturbed = sum(not reader.done() for reader in readers)
            await asyncio.gather(*readers)
        reaper.cancel()
        await collect(connection, history, fleet)
    assert violations(history) == []
    # and it was a real test
    statuses = list(history.statuses.values())
    assert (fleet.kills, fleet.pauses, restarts) == (rounds, rounds // 4, rounds // 4)
    assert disturbed > jobs / 12
    assert statuses.count("completed") > 0.8 * jobs
    assert statuses.count("cancelled") > 0
    assert len({write.job_id for write in fleet.writes() if write.attempt > 1}) > jobs / 12


@pytest.mark.full
async def test_a_server_that_forgets_its_last_second_is_not_noticed(tmp_path: Path) -> None:
    """Jobs that it had accepted in it, tokens and ends: all are there again, and only workers know that of before."""
    random.seed(22)
    async with killable_service(tmp_path) as (server, client, connection):
        history = await submit(client, 60, 40)
        readers = [asyncio.create_task(listen(client, job, history.heard)) for job in history.reference]
        async with fleet_of(server.url, tmp_path / "logs", 3) as fleet:
            await busy(connection, 30)
            for round_ in range(size(4, quick=2)):
                with forgotten_by(server, tmp_path):
                    more = await submit(client, 30, 12, first=1000 * (1 + round_))
                    history.reference |= more.reference
                    readers += [asyncio.create_task(listen(client, job, history.heard)) for job in more.reference]
                    fleet.kill_one()
                    await asyncio.sleep(random.uniform(0.5, 1.5))
                await asyncio.sleep(random.uniform(0.2, 1.0))
            await asyncio.gather(*readers)
            async with asyncio.timeout(STALL_S):
                while not all([(await client.info(job)).status.is_terminal for job in history.reference]):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        await collect(connection, history, fleet)
    assert [problem for problem in violations(history) if not problem.startswith("one_owner")] == []
    # and it was a real test: tokens were stored twice
    assert any(problem.startswith("one_owner") for problem in violations(history))


@pytest.mark.full
async def test_the_checker_sees_that_a_fence_is_missing(redis_url: str, tmp_path: Path) -> None:
    random.seed(21)
    async with AsyncClient(redis_url) as client, connect(redis_url) as connection:
        await fake.register(connection)
        history = await submit(client, 36, 160)  # every worker gets some, and has room for some of another's
        readers = [asyncio.create_task(listen(client, job, history.heard)) for job in history.reference]
        async with fleet_of(redis_url, tmp_path, 3, "--unfenced") as fleet:
            await busy(connection, 36)
            for _ in range(3):
                await fleet.pause_one()
                fleet.processes.append(fleet.processes.pop(0))
            await asyncio.wait(readers, timeout=20)
            await collect(connection, history, fleet)
        for reader in readers:
            reader.cancel()
    assert [problem for problem in violations(history) if problem.startswith("one_owner")]


def correct() -> History:
    """A run of two jobs in which nothing went wrong."""
    history = History({"a": [1, 2, 3], "b": [4]})
    history.heard = {"a": [1, 2, 3], "b": [4]}
    history.writes = [Accepted("a", 1, 0, 2), Accepted("a", 2, 2, 1), Accepted("b", 1, 0, 1)]
    end = Terminal(status=JobStatus.COMPLETED, usage=Usage())
    history.streams = {
        "a": [("2-0", chunk(1, 2)), ("3-0", chunk(3)), ("3-1", end)],
        "b": [("1-0", chunk(4)), ("1-1", end)],
    }
    history.statuses = {"a": "completed", "b": "completed"}
    history.outbox = [("a", "completed"), ("b", "completed")]
    return history


def chunk(*tokens: int) -> Chunk:
    return Chunk(token_ids=tokens, texts=("",) * len(tokens))


def test_the_checker_accepts_a_correct_history() -> None:
    assert violations(correct()) == []


@pytest.mark.parametrize(
    ("break_it", "name"),
    [
        (lambda h: h.statuses.update(a="running"), "ended_once"),
        (lambda h: h.statuses.pop("a"), "ended_once"),
        (lambda h: h.outbox.append(("a", "completed")), "ended_once"),
        (lambda h: h.outbox.pop(), "ended_once"),
        (lambda h: h.streams["a"].pop(0), "gapless"),
        (lambda h: h.streams["a"].insert(1, h.streams["a"][0]), "gapless"),
        (lambda h: h.streams["a"].append(h.streams["a"][-1]), "gapless"),
        (lambda h: h.streams["a"].pop(), "gapless"),
        (lambda h: h.heard["a"].append(3), "heard_what_is_stored"),
        (lambda h: h.heard.pop("b"), "heard_what_is_stored"),
        (lambda h: h.reference["a"].reverse(), "content"),
        (lambda h: h.reference["a"].append(9), "content"),
        (lambda h: h.writes.append(Accepted("a", 1, 2, 1)), "one_owner"),
        (lambda h: h.writes.append(Accepted("b", 0, 1, 1)), "one_owner"),
        (lambda h: h.counters.update(queued=1), "clean"),
        (lambda h: h.immortal_keys.add("t:a"), "clean"),
    ],
)
def test_the_checker_sees_every_kind_of_violation(break_it: object, name: str) -> None:
    history = correct()
    break_it(history)  # type: ignore[operator]
    assert any(problem.startswith(name) for problem in violations(history))
