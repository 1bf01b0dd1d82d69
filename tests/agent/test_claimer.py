"""When a worker asks for jobs, and that no bell and no answer is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis
import waiting
from queue_client import MODEL, Queue, known_queue
from redis.exceptions import ConnectionError

from octavo.queue.connection import answered, connect
from octavo.queue.protocol import Claims, ClassRoom
from octavo_worker.agent.claims import bells
from octavo_worker.agent.claims import claimer as module
from octavo_worker.agent.claims.claimer import Claimer
from octavo_worker.agent.claims.room import Room


def room_of(*jobs: int, idle: bool = False) -> Room:
    """For so many jobs of each class, or of all that are not named."""
    classes = (*jobs, *[jobs[-1]] * (3 - len(jobs)))
    return Room(tuple(ClassRoom(count, 9999, whole=idle) for count in classes), idle=idle)


class Counter:
    """A claimer, the room that it is told of, and the jobs that it took."""

    def __init__(self, queue: Queue, claimer_of: type[Claimer], connection: redis.asyncio.Redis) -> None:
        self.room: Room | None = room_of(4, idle=True)
        self.taken: list[str] = []
        self.changed = asyncio.Event()
        self.queue = queue
        self.bell = queue.cell.keys.bell(MODEL)
        self.blocked = f"{queue.cell.keys.prefix}:blocked:{MODEL}"
        self.claimer = claimer_of(
            connection,
            queue.cell,
            model=MODEL,
            worker_id="w",
            lease_ms=60_000,
            digest=lambda: "",
            room=lambda: self.room,
            changed=self.changed,
            take=self._take,
        )

    def _take(self, claims: Claims) -> None:
        self.taken += [claim.job_id for claim in claims.jobs]

    async def waits_for_the_bell(self) -> None:
        await waiting.until(lambda: self.queue.connection.info("clients")["blocked_clients"])


@pytest.fixture
async def counter(redis_url: str) -> AsyncIterator[Counter]:
    async with counting(redis_url) as made:
        yield made


@asynccontextmanager
async def counting(url: str) -> AsyncIterator[Counter]:
    with redis.Redis.from_url(url) as connection:
        async with connect(url) as pool:
            made = Counter(known_queue(connection), Claimer, pool)
            running = asyncio.create_task(made.claimer.run())
            try:
                yield made
            finally:
                made.claimer.stop()
                await running


async def test_a_worker_without_room_leaves_the_bell_to_others(counter: Counter) -> None:
    await counter.waits_for_the_bell()
    counter.room = None
    job_id = counter.queue.submit()
    await waiting.until(lambda: not counter.queue.connection.info("clients")["blocked_clients"])
    await waiting.until(lambda: counter.queue.connection.llen(counter.bell))
    assert job_id not in counter.taken


async def test_a_worker_that_leaves_passes_the_bell_on(redis_url: str) -> None:
    async with counting(redis_url) as counter:
        await counter.waits_for_the_bell()
    assert counter.queue.connection.llen(counter.bell) == 1


async def test_a_claim_whose_answer_was_lost_is_repeated(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    send, lost = module.run, [ConnectionError("the answer is lost")]

    async def run(*arguments: object) -> object:
        answer = await send(*arguments)
        if lost and answer.jobs:
            raise lost.pop()
        return answer

    monkeypatch.setattr(module, "run", run)
    async with counting(redis_url) as counter:
        job_id = counter.queue.submit()
        await waiting.until(lambda: counter.taken)
        assert counter.taken == [job_id]


async def test_a_suspect_that_waits_gets_an_idle_worker(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    send, asked = module.run, [0]

    async def run(*arguments: object) -> object:
        asked[0] += 1
        return await send(*arguments)

    monkeypatch.setattr(module, "run", run)
    async with counting(redis_url) as counter:
        await counter.waits_for_the_bell()
        counter.room = room_of(4)
        suspect = counter.queue.submit()
        keys, connection = counter.queue.cell.keys, counter.queue.connection
        await waiting.until(lambda: counter.taken == [suspect])
        connection.hset(keys.job(suspect), mapping={"st": "queued", "lane": "solo"})
        connection.zadd(f"{keys.prefix}:b:solo:{MODEL}", {suspect: 1})
        connection.rpush(counter.bell, 1)
        before = asked[0]
        await waiting.until(lambda: asked[0] > before)
        other, before = counter.queue.submit(), asked[0]
        await waiting.until(lambda: asked[0] > before)
        counter.room = room_of(4, idle=True)
        await waiting.until(lambda: len(counter.taken) > 1)
        assert counter.taken[1] == suspect
        connection.zrem(f"{keys.prefix}:b:solo:{MODEL}", suspect)
        await waiting.until(lambda: other in counter.taken)


# classes


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only bells and room wake a worker."""
    monkeypatch.setattr(bells, "_WAIT_S", 0)
    monkeypatch.setattr(bells, "answered", lambda: answered(600.0))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every claim that was sent."""
    send, calls = module.run, []

    async def run(*arguments: object) -> object:
        calls.append(arguments)
        return await send(*arguments)

    monkeypatch.setattr(module, "run", run)
    return calls


async def test_a_worker_full_of_one_class_hears_of_another(redis_url: str, patient: None, asked: list[object]) -> None:
    async with counting(redis_url) as counter:
        counter.room = room_of(4, 4, 0)
        counter.changed.set()
        await counter.waits_for_the_bell()
        for _ in range(3):
            counter.queue.submit(priority="batch")
        high = counter.queue.submit(priority="high")
        await waiting.until(lambda: counter.taken == [high])
        await asyncio.sleep(0.2)
        assert len(asked) <= 8, "what it has no room for wakes it over and over"


async def test_a_worker_claims_what_it_has_room_for_again(redis_url: str, patient: None) -> None:
    async with counting(redis_url) as counter:
        counter.room = room_of(4, 4, 0)
        counter.changed.set()
        await counter.waits_for_the_bell()
        low = counter.queue.submit(priority="batch")
        await waiting.until(lambda: counter.queue.connection.exists(batch_bell(counter)))
        assert counter.taken == []
        counter.room = room_of(4)
        counter.changed.set()
        await waiting.until(lambda: counter.taken == [low])


async def test_a_worker_claims_again_when_what_did_not_fit_may_fit(redis_url: str, patient: None) -> None:
    async with counting(redis_url) as counter:
        counter.room = Room((ClassRoom(4, 99),) * 3, idle=False)
        counter.changed.set()
        await counter.waits_for_the_bell()
        job_id = counter.queue.submit(tuple(range(100)))
        await waiting.until(lambda: counter.queue.connection.exists(counter.blocked))
        counter.room = room_of(4)
        counter.changed.set()
        await waiting.until(lambda: counter.taken == [job_id])


async def test_a_worker_without_room_for_a_class_wakes_one_with(redis_url: str, patient: None) -> None:
    async with counting(redis_url) as full, counting(redis_url) as other:
        full.room = room_of(4, 4, 0)
        full.changed.set()
        for _ in range(5):
            await waiting.until(lambda: full.queue.connection.info("clients")["blocked_clients"] == 2)
            before = len(other.taken)
            full.queue.submit(priority="batch")
            await waiting.until(lambda before=before: len(other.taken) > before)
        assert full.taken == []


def batch_bell(counter: Counter) -> str:
    return counter.queue.cell.keys.bell(MODEL, priority="batch")
