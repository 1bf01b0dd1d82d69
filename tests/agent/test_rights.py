"""Users with few rights: each role does its work with its rule, and what a server refuses is no crash of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from queue_client import MODEL, Queue, expected
from waiting import STALL_S, eventually, until

from octavo import AsyncClient, Client
from octavo.client.handles import AsyncJob
from octavo.queue.connection import connect_sync
from octavo.queue.keys import Keys
from octavo.queue.roles import ROLES, lacking
from octavo.terms.errors import ServerUnavailable
from octavo.terms.messages import JobStatus
from octavo.terms.models import JobRequest
from octavo_worker.agent.membership import _lacking

PROMPT = [7, 8, 9]
FIELDS = {"model": MODEL, "ignore_eos": True, "seed": 1}
RULES = {role.name: role.rule for role in ROLES}

User = Callable[..., str]


def refusals(connection: redis.Redis) -> list[tuple[bytes, bytes]]:
    """Refusals that the server has written down since it was asked last: user and command, once for each time."""
    rows = connection.execute_command("ACL", "LOG")
    connection.execute_command("ACL", "LOG", "RESET")
    fields = [dict(zip(row[::2], row[1::2], strict=True)) if isinstance(row, list) else row for row in rows]
    return [(row[b"username"], row[b"object"]) for row in fields for _ in range(int(row[b"count"]))]


@pytest.fixture
def user(redis_sync: redis.Redis, redis_url: str) -> Iterator[User]:
    """Makes a user with these rules, or changes one, and gives its address."""

    def make(name: str, *rules: str) -> str:
        redis_sync.execute_command("ACL", "SETUSER", f"test-{name}", ">pw", *" ".join(rules).split())
        return redis_url.replace("//", f"//test-{name}:pw@")

    yield make
    for name in redis_sync.execute_command("ACL", "USERS"):
        if name.startswith(b"test-"):
            redis_sync.execute_command("ACL", "DELUSER", name)


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_rule_is_what_its_role_needs(user: User, role) -> None:
    with connect_sync(user(role.name, role.rule)) as connection:
        missing = lacking(connection)
    assert missing[role.name] == []
    if role.name != "reader":
        last = role.commands[-1]
        with connect_sync(user(role.name, "-" + last.lower())) as connection:
            assert lacking(connection)[role.name] == [last]


def test_a_worker_tries_its_own_commands_alone(user: User, redis_sync: redis.Redis) -> None:
    """It does so a second after its start, when most tests have ended."""
    refusals(redis_sync)
    assert _lacking(user("worker", RULES["worker"])) == []
    assert refusals(redis_sync) == []


@pytest.mark.parametrize("role", ["client", "gateway"])
async def test_a_client_does_all_that_it_may(
    user: User, start_worker, redis_url: str, redis_sync: redis.Redis, role: str
) -> None:
    refusals(redis_sync)
    start_worker(url=user("worker", RULES["worker"])).wait_ready()
    async with AsyncClient(user(role, RULES[role])) as client:
        job = await client.submit(PROMPT, max_tokens=20, idempotency_key="k", follow=True, **FIELDS)
        async with asyncio.timeout(STALL_S):
            tokens = [token async for event in job.events() for token in event.token_ids]
        assert tokens == expected(PROMPT, 20)
        assert (await client.result(job.id)).status is JobStatus.COMPLETED
        endless = await client.submit(PROMPT, max_tokens=900, **FIELDS)
        await anext(endless.events())
        await endless.cancel()
        assert (await client.result(endless.id)).status is JobStatus.CANCELLED
        for tenant in (None, "default"):
            assert {info.id for info in await client.jobs(tenant=tenant)} == {job.id, endless.id}
        (worker,) = await client.workers()
        assert (await client.worker_memory(worker.id)).block_size
        await client.pin_prefix("name", model=MODEL, prompt=list(range(40)))
        await until(lambda: pinned(client))
        assert await client.unpin_prefix("name", model=MODEL)
        assert await client.dead_letters() == []
        assert (await client.tokenize(JobRequest(model=MODEL, prompt="hello"))).token_ids
        assert (await client.page(job.id, 5)).events[0].token_ids
        await client.note_chat("chat", job.id, tenant="default")
        assert await client.chat_job("chat", tenant="default") == job.id
        assert set(await client.queue_depths()) == {MODEL}
        if role == "gateway":
            await client.reap()
            await client.check_writable()
    assert refusals(redis_sync) == []


async def pinned(client: AsyncClient) -> bool:
    (pin,) = await client.pins(MODEL)
    return any(outcome is not None and outcome.state == "pinned" for outcome in pin.workers.values())


@pytest.mark.parametrize("rule", ["now", "before"])
async def test_a_reader_follows_and_changes_nothing(
    user: User, start_worker, redis_url: str, redis_sync: redis.Redis, rule: str
) -> None:
    """The rule of before allows no script. A client with it is refused once, and not at every page that it reads."""
    start_worker("step_seconds=0.02").wait_ready()
    url = user("reader", RULES["reader"], *(["-evalsha", "-script|load"] if rule == "before" else []))
    refusals(redis_sync)
    async with AsyncClient(redis_url) as client, AsyncClient(url) as reader:
        job = await client.submit(PROMPT, max_tokens=100, n=2, **FIELDS)
        async with asyncio.timeout(STALL_S):
            events = [event async for event in reader.events(job.id)]
        for index in range(2):
            ids = [token for event in events if event.index == index for token in event.token_ids]
            assert len(ids) == 100
        assert (await reader.info(job.id)).status is JobStatus.COMPLETED
        assert len(await reader.workers()) == 1
        for place in (7, events[0].position):
            assert (await reader.page(job.id, place)).holds
            assert [event async for event in reader.events(job.id, place)][-1].end is not None
        assert (await reader.result(job.id)).status is JobStatus.COMPLETED
        assert "gw" not in redis_sync.hkeys(Keys().job(job.id))
        assert refusals(redis_sync) == ([(b"test-reader", b"evalsha")] if rule == "before" else [])
        for refused in (reader.submit(PROMPT, max_tokens=1, **FIELDS), reader.cancel(job.id)):
            with pytest.raises(ServerUnavailable, match="docs/protocol"):
                await refused


def test_without_a_channel_jobs_are_late_and_not_crashed(user: User, queue: Queue, start_worker, redis_url) -> None:
    worker = start_worker(url=user("worker", RULES["worker"], "resetchannels")).wait_ready()
    with Client(redis_url) as client:
        jobs = [client.submit(PROMPT, max_tokens=100, follow=True, **FIELDS) for _ in range(3)]
        for job in jobs:
            assert [token for event in job.events() for token in event.token_ids] == expected(PROMPT, 100)
            assert queue.field(job.id, "crashes") == "0"
    eventually(lambda: "lacks PUBLISH" in worker.log)


@pytest.mark.full(but=2)
@pytest.mark.parametrize("lost", ["-xadd", "-hmget", "-evalsha -eval -script", "-@write", "-@all", "resetkeys"])
def test_rights_that_are_lost_for_a_while_cost_no_job(
    user: User, queue: Queue, start_worker, redis_sync: redis.Redis, lost: str
) -> None:
    start_worker("step_seconds=0.01", url=user("worker", RULES["worker"]), lease=300.0).wait_ready()
    jobs = [queue.submit(PROMPT, sampling={"max_tokens": 200, "ignore_eos": True}) for _ in range(3)]
    eventually(lambda: all(queue.stored(job) > 10 for job in jobs))
    redis_sync.execute_command("ACL", "LOG", "RESET")
    user("worker", lost)
    eventually(lambda: redis_sync.execute_command("ACL", "LOG"))
    user("worker", RULES["worker"])
    for job in jobs:
        assert list(queue.wait(job).token_ids) == expected(PROMPT, 200)
        assert queue.field(job, "crashes") == "0"


def test_a_worker_says_what_is_refused_and_nothing_of_forgetting(user: User, start_worker, tmp_path: Path) -> None:
    worker = start_worker(url=user("worker", RULES["worker"], "-evalsha -eval -script"))
    eventually(lambda: "cannot announce its model" in worker.log)
    assert "lacks a permission" in worker.log
    assert "has forgotten" not in worker.log


async def test_a_client_says_what_is_refused(user: User) -> None:
    async with AsyncClient(user("client", RULES["client"], "-xadd -evalsha")) as client:
        with pytest.raises(ServerUnavailable, match="octavo doctor"):
            assert isinstance(await client.submit(PROMPT, **FIELDS), AsyncJob)
