"""A stranger's hand in the server: whatever it spoils, all other jobs end right, and the spoiled one ends."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import redis
from spoiling import LiveCell, cases

from octavo import AsyncClient
from octavo.terms.errors import OctavoError

SHARES = 24


@pytest.mark.full(but=1)
@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_is_spoiled_all_other_jobs_end_right(redis_sync: redis.Redis, share: int) -> None:
    live = LiveCell(redis_sync)
    every = list(cases(redis_sync))
    assert len(every) > 1000
    failures = [failure for case in every[share::SHARES] if (failure := outcome(live, case))]
    assert not failures, f"{len(failures)} of {len(every[share::SHARES])}:\n" + "\n".join(failures[:30])


def outcome(live: LiveCell, case: Any) -> str:
    live.restore()
    case.spoil(live.redis)
    try:
        live.run_out()
        problems = live.problems(case.jobs)
    except Exception as error:
        problems = [f"{type(error).__name__}: {str(error)[:300]}"]
    return f"{case.name[:140]}: {problems[:2]}" if problems else ""


@pytest.mark.full(but=1)
@pytest.mark.parametrize("share", range(SHARES))
async def test_whatever_is_spoiled_readers_get_answers_or_clear_errors(
    redis_sync: redis.Redis, redis_url: str, share: int
) -> None:
    live = LiveCell(redis_sync)
    every = list(cases(redis_sync))
    async with AsyncClient(redis_url) as client:
        for case in every[share :: 2 * SHARES]:
            live.restore()
            case.spoil(redis_sync)
            job = next(iter(case.jobs), live.jobs[0])
            for ask in (
                *(partial(client.info, job), partial(client.outcome, job), client.jobs, client.dead_letters),
                *(client.models, client.workers, client.pins, client.queue_depths),
            ):
                with suppress(OctavoError):
                    await ask()
            for other in set(live.jobs) - case.jobs - {job}:
                assert (await client.info(other)).id == other, case.name


async def test_a_list_leaves_out_what_is_no_worker_no_model_no_dead_letter(redis_sync, redis_url) -> None:
    live = LiveCell(redis_sync)
    for name in ("models", "pins:toy"):
        redis_sync.hset(f"{{c00}}:{name}", b"\xff", b"somebody else's")
    redis_sync.zadd("{c00}:workers", {b"\xff": 1})
    redis_sync.set(b"{c00}:W:\xff", "somebody else's")
    redis_sync.xadd("{c00}:dlq", {"somebody": "else's"})
    redis_sync.zadd("{c00}:jobs", {b"\xff": 0, "somebody else's": 0})
    async with AsyncClient(redis_url) as client:
        assert [card.name for card in await client.models()] == ["toy"]
        assert (await client.workers(), await client.pins(), await client.dead_letters()) == ([], [], [])
        assert {info.id for info in await client.jobs()} == set(live.jobs)


@pytest.mark.parametrize("limit", ["queued", "bytes"])
def test_a_counter_that_cannot_be_right_refuses_no_job(redis_sync: redis.Redis, limit: str) -> None:
    live = LiveCell(redis_sync)
    before = redis_sync.hgetall("{c00}:q")
    redis_sync.hset("{c00}:q", limit, 1 << 50)
    live.enqueue()
    assert int(redis_sync.hget("{c00}:q", limit) or 0) > int(before[limit.encode()])
    assert int(redis_sync.hget("{c00}:q", limit) or 0) < 1 << 20
