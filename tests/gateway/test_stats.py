"""`/v1/stats`: the fleet's figures are those of the queue, and cost what is listed and not what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import redis
from scripted_worker import MODEL, STATS, ScriptedWorker
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.queue.overview.lanes import JOBS_LISTED


async def stats_of(http: httpx.AsyncClient) -> dict[str, Any]:
    await asyncio.sleep(0.25)  # a reading is shared for so long
    reply = await http.get("/v1/stats")
    assert reply.status_code == 200
    return reply.json()


def lane(stats: dict[str, Any], priority: str) -> dict[str, Any]:
    (found,) = [one for one in stats["lanes"] if (one["model"], one["priority"]) == (MODEL, priority)]
    return found


async def test_lanes_tell_running_and_waiting_jobs_of_each_class(http: httpx.AsyncClient, redis_url: str) -> None:
    async with AsyncClient(redis_url) as client:
        async with ScriptedWorker(redis_url, hold_after=3):
            runs = [await client.submit("xy", model=MODEL, max_tokens=9, tenant=name) for name in ("a", "b")]
            for job in runs:
                await until(partial(has_tokens, job))
            stats = await stats_of(http)
            normal = lane(stats, "normal")
            assert {(job["id"], job["tenant"], job["tokens"]) for job in normal["jobs"]} == {
                (job.id, tenant, 3) for job, tenant in zip(runs, "ab", strict=True)
            }
            assert (normal["running"], normal["waiting"], stats["running"], stats["queued"]) == (2, 0, 2, 0)
            assert {job["worker"] for job in normal["jobs"]} == {"scripted"}
            (worker,) = stats["workers"]
            assert (worker["running"], worker["blocks"]["used"]) == (STATS["running"], STATS["used_blocks"])
        waits = [
            await client.submit("xyz", model=MODEL, max_tokens=7, priority="batch", tenant=name)
            for name in ("a", "a", "c")
        ]
        stats = await stats_of(http)
        batch = lane(stats, "batch")
        assert [job["id"] for job in batch["jobs"]] == [job.id for job in waits]
        assert (batch["waiting"], batch["running"], stats["queued"]) == (3, 0, 3)
        assert batch["backlog_tokens"] == sum(job["weight"] for job in batch["jobs"]) > 3 * 7
        assert batch["waiting_since"] == batch["jobs"][0]["created_at"]


async def has_tokens(job: Any) -> bool:
    return (await job.info()).tokens == 3


async def test_of_a_long_lane_some_jobs_are_listed_and_all_are_counted(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_url: str, redis_sync: redis.Redis
) -> None:
    await worker.__aexit__()
    async with AsyncClient(redis_url) as client:
        jobs = [
            await client.submit("x", model=MODEL, max_tokens=4, tenant=f"t{number % 3}", priority="high")
            for number in range(JOBS_LISTED + 40)
        ]
        found = lane(await stats_of(http), "high")
        assert (found["waiting"], found["unlisted"]) == (len(jobs), len(jobs) - len(found["jobs"]))
        assert JOBS_LISTED - 3 <= len(found["jobs"]) <= JOBS_LISTED
        assert found["backlog_tokens"] == len(jobs) * found["jobs"][0]["weight"]
        before = commands(redis_sync)
        await stats_of(http)
        assert commands(redis_sync) - before < 60, "what waits was read before"


def commands(connection: redis.Redis) -> int:
    """Reads of jobs, from the server's own count."""
    stats = connection.info("commandstats")
    return int(stats["cmdstat_hmget"]["calls"])


async def test_given_up_jobs_are_listed(http: httpx.AsyncClient, redis_sync: redis.Redis) -> None:
    redis_sync.xadd("{c00}:dlq", {"id": "g00_01ARZ3NDEKTSV4RRFFQ69G5FAV", "why": "dead_lettered", "ep": 3, "wid": "w"})
    redis_sync.xadd("{c00}:dlq", {"nothing": "of octavo"})
    stats = await stats_of(http)
    (letter,) = stats["dead_letters"]
    assert (letter["job_id"], letter["attempts"], stats["dead"]) == ("g00_01ARZ3NDEKTSV4RRFFQ69G5FAV", 3, 2)


async def test_stats_are_for_operators(own_gateway: Callable[..., str]) -> None:
    url = own_gateway(api_keys="acme:a-key,ops:an-ops-key", operators="ops")
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        for key, status in (("a-key", 403), ("an-ops-key", 200), ("no-key", 401)):
            for path in ("/v1/stats", "/v1/fleet/events"):
                reply = await http.head(path, headers={"Authorization": f"Bearer {key}"})
                assert reply.status_code == status
