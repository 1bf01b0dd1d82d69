"""Jobs of many tenants under kills of workers and the server, cancels, expiries, poison and erasures; then the account,
the buckets and the caps beside a recount from what readers were told."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_worker as fake
import redis.asyncio
from buckets import level_in
from history_fleet import Fleet, fleet_of
from history_worker import POISON
from killable_server import killable_service
from waiting import STALL_S

from octavo import AsyncClient, JobRequest, SamplingParams
from octavo.queue.connection import answered, connect
from octavo.queue.tenants.usage import grouped
from octavo.service.server import EmbeddedServer
from octavo.terms.errors import JobNotFound, OctavoError
from octavo.terms.limits import Retention
from octavo.terms.messages import Terminal

TENANTS = 20
CAPACITY = 10**7
WORKERS = 3
_ALMOST = 0.1  # of a token: a bucket refills with one a day
_SNAPSHOT = """#!lua flags=no-writes
local counts = {}
for i, name in ipairs(ARGV) do counts[i] = tonumber(redis.call('HGET', KEYS[1] .. ':q:' .. name, 'running') or 0) end
return counts
"""


@dataclass
class Story:
    """Deeds of the test, and what readers were told."""

    tenants: dict[str, int]  # to their caps of running jobs
    chance: random.Random
    jobs: dict[str, str] = field(default_factory=dict)  # to their tenants
    ends: dict[str, Terminal] = field(default_factory=dict)
    hashes: dict[str, dict[str, bytes]] = field(default_factory=dict)  # as they ended: an erased job's goes soon
    poison: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)


async def soak(folder: Path, *, jobs: int, kills: int, seed: int, seconds: float = 0.0) -> list[str]:
    """Faults at the end. Kills go on until there were as many, and the seconds are over."""
    chance = random.Random(seed)
    story = Story({f"tenant-{number}": chance.randint(1, 4) for number in range(TENANTS)}, chance)
    async with killable_service(folder, Retention(stream_s=3600)) as (server, client, connection):
        for tenant, cap in story.tenants.items():
            values = {"running": cap, "weight": chance.choice([500, 1000, 4000]), "tokens_per_day": 1}
            await client.tenants.limit(tenant, values | {"tokens_per_day_capacity": CAPACITY})
        async with fleet_of(server.url, folder / "logs", WORKERS) as fleet, asyncio.TaskGroup() as group:
            watching = [group.create_task(_reap(client)), group.create_task(_watch_caps(server.url, story))]
            reading = [task async for task in _submit(client, connection, story, jobs, group)]
            trouble = group.create_task(_make_trouble(server, client, fleet, story, kills, seconds))
            async with asyncio.timeout(STALL_S + seconds):
                await asyncio.gather(*reading, trouble)
            for task in watching:
                task.cancel()
        await _check(client, connection, story)
    print(dict(story.done), flush=True)
    return story.faults


async def _submit(
    client: AsyncClient, connection: redis.asyncio.Redis, story: Story, count: int, group: asyncio.TaskGroup
) -> Any:
    names = list(story.tenants)
    for number in range(count):
        tenant = story.chance.choice(names)
        is_poison = number % 100 == 50
        timeout_s = story.chance.choice([None, None, None, 1.5])
        request = JobRequest(
            model=fake.MODEL,
            prompt=POISON if is_poison else f"p{number}",
            sampling=SamplingParams(max_tokens=story.chance.randint(1, 24), seed=number),
            priority=story.chance.choice(["high", "normal", "batch"]),
            timeout_s=None if is_poison else timeout_s,
        )
        job = await client.submit(request, tenant=tenant, idempotency_key=f"k{number}")
        story.jobs[job.id] = tenant
        if is_poison:
            story.poison.add(job.id)
        yield group.create_task(_read(client, connection, story, job.id))


async def _read(client: AsyncClient, connection: redis.asyncio.Redis, story: Story, job_id: str) -> None:
    """A reader that stays to the end, and notes it."""
    while job_id not in story.ends:
        try:
            async for event in client.events(job_id):
                if event.end is not None:
                    story.ends[job_id] = event.end
        except JobNotFound:
            break  # it was erased: its hash says how it ended
        except OctavoError:
            await asyncio.sleep(0.2)
    story.hashes[job_id] = await _ended(connection, job_id)


async def _ended(connection: redis.asyncio.Redis, job_id: str) -> dict[str, bytes]:
    """The hash of a job, once it says that it has ended."""
    while True:
        with suppress(redis.exceptions.RedisError, OSError):
            found = {name.decode(): value for name, value in (await connection.hgetall(f"{{c00}}:j:{job_id}")).items()}
            if found["st"] not in (b"queued", b"running"):
                return found
        await asyncio.sleep(0.2)


async def _reap(client: AsyncClient) -> None:
    while True:
        with suppress(OctavoError):
            await client.reap()
        await asyncio.sleep(0.3)


async def _watch_caps(url: str, story: Story) -> None:
    """Looks at all tenants at one instant, again and again."""
    names = list(story.tenants)
    async with connect(url) as connection:
        while True:
            with suppress(redis.exceptions.RedisError, OSError):
                async with answered():
                    counts: Any = await connection.eval(_SNAPSHOT, 1, "{c00}", *names)
                story.done["looks"] += 1
                for name, count in zip(names, counts, strict=True):
                    if count > story.tenants[name]:
                        story.faults.append(f"{name} ran {count} jobs, its cap is {story.tenants[name]}")
            await asyncio.sleep(0.02)


async def _make_trouble(
    server: EmbeddedServer, client: AsyncClient, fleet: Fleet, story: Story, kills: int, seconds: float
) -> None:
    chance, until = story.chance, time.monotonic() + seconds
    while story.done["kills"] < kills or time.monotonic() < until:
        what = chance.choices(["kill", "restart", "cancel", "erase", "pause"], [5, 1, 6, 3, 1])[0]
        left = [job_id for job_id in story.jobs if job_id not in story.ends]
        if not left:
            return
        job_id = chance.choice(left)
        if what == "kill":
            fleet.kill_one()
            story.done["kills"] += 1
        elif what == "restart":
            await asyncio.to_thread(server.restart)
        elif what == "pause":
            await fleet.pause_one()
        else:
            with suppress(OctavoError):
                await (client.cancel(job_id) if what == "cancel" else client.erase(job_id))
        story.done[what] += 1
        await asyncio.sleep(chance.uniform(0.02, 0.3))


async def _check(client: AsyncClient, connection: redis.asyncio.Redis, story: Story) -> None:
    account: dict[str, Counter[str]] = {tenant: Counter() for tenant in story.tenants}
    spent: Counter[str] = Counter()
    for job_id, tenant in story.jobs.items():
        state = story.hashes[job_id]
        status, tokens, told = state["st"].decode(), int(state["n"]), story.ends.get(job_id)
        if told is not None and (told.status.value, told.usage.completion_tokens) != (status, tokens):
            story.faults.append(f"{job_id} is {status} with {tokens} tokens, its reader was told {told}")
        by_owner = "ftok" in state
        prompt = told.usage.prompt_tokens if told else 3 if by_owner else 0
        account[tenant].update(
            requests=1, input=prompt, output=tokens, failures=status in ("failed", "expired"), **{status: 1}
        )
        ran = int(state["ep"]) > 0
        spent[tenant] += prompt + tokens if by_owner else int(state["est"]) + tokens if ran else 0
        story.done[status] += 1
        if job_id in story.poison and status == "completed":
            story.faults.append(f"{job_id} kills its engine and is {status}")
    now = time.time()
    sums = grouped(await client.tenants.usage(now - 86_400, now + 86_400), lambda row: row.tenant)
    for tenant, counts in account.items():
        found = sums.get(tenant)
        told = found and (found.requests, found.input_tokens, found.output_tokens, found.failures)
        wanted = (counts["requests"], counts["input"], counts["output"], counts["failures"])
        if (told or (0, 0, 0, 0)) != wanted:
            story.faults.append(f"{tenant} has {told} in its account, its jobs come to {wanted}")
        stored = await connection.hget(f"{{c00}}:bk:{tenant}", "* tokens_per_day")
        level = level_in(stored) if stored else float(CAPACITY)
        if abs(level - (CAPACITY - spent[tenant])) > _ALMOST:
            story.faults.append(f"{tenant} has {level} in its bucket, its jobs left {CAPACITY - spent[tenant]}")
        if await connection.exists(f"{{c00}}:q:{tenant}", f"{{c00}}:pk:{tenant}"):
            story.faults.append(f"{tenant} has counters or is parked without any job")
