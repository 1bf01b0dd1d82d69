"""Dead letters in bulk: chosen by model, tenant and reason, submitted again once, and purged with their requests."""

from __future__ import annotations

from typing import Any

import pytest

from octavo import AsyncClient
from octavo.queue.keys import Keys
from octavo.terms.errors import InvalidRequest, JobNotFound

KEYS = Keys()


def given_up(world: Any, tenant: str, count: int = 1) -> list[str]:
    jobs = []
    for _ in range(count):
        jobs.append(world.enqueue(tenant=tenant))
        for _ in range(3):
            world.crash(jobs[-1])
        assert world.status(jobs[-1]) == "failed"
    return jobs


async def test_those_of_one_tenant_go_back_once(world: Any, client: AsyncClient) -> None:
    mine, theirs = given_up(world, "one", 2), given_up(world, "two")
    assert [letter.tenant for letter in await client.dead_letters()] == ["two", "one", "one"]
    before = world.redis.xrange(f"{KEYS.prefix}:dlq")
    new, failed = await client.requeue_all(tenant="one")
    assert (list(new), failed) == (mine, {})
    for entry, fields in before:
        if fields[b"id"].decode() in mine:  # as if its caller had been killed before the last step
            world.redis.xadd(f"{KEYS.prefix}:dlq", fields)
            assert entry
    again, _ = await client.requeue_all(tenant="one", model="toy", reason="dead_lettered")
    assert again == new, "none is submitted twice"
    assert {claim.job_id for claim in world.claim(max_jobs=9).jobs} == set(new.values())
    assert [letter.job_id for letter in await client.dead_letters()] == theirs


async def test_what_nothing_fits_stays(world: Any, client: AsyncClient) -> None:
    given_up(world, "one")
    for chosen in ({"model": "other"}, {"tenant": "two"}, {"reason": "job_damaged"}):
        assert await client.requeue_all(**chosen) == ({}, {})
        assert await client.purge(**chosen) == 0
        assert await client.dead_letters(**chosen) == []
    assert len(await client.dead_letters()) == 1


async def test_a_purged_job_keeps_its_end_and_loses_its_request(world: Any, client: AsyncClient) -> None:
    (job,) = given_up(world, "one")
    assert await client.purge(tenant="one") == 1
    assert await client.dead_letters() == []
    assert "body" not in world.state(job)
    assert (await client.info(job)).error is not None
    with pytest.raises(InvalidRequest, match="was not given up"):
        await client.requeue(job)


async def test_one_that_is_forgotten_stays_and_says_why(world: Any, client: AsyncClient) -> None:
    (job,) = given_up(world, "one")
    world.redis.delete(world.keys.job(job))
    (letter,) = await client.dead_letters()
    assert (letter.model, letter.tenant) == (None, None)
    new, failed = await client.requeue_all()
    assert new == {}
    assert isinstance(failed[job], JobNotFound)
    assert await client.purge() == 1


async def test_more_than_a_page_of_them(world: Any, client: AsyncClient) -> None:
    jobs = [KEYS.new_job_id() for _ in range(450)]
    for job in jobs:
        world.redis.xadd(f"{KEYS.prefix}:dlq", {"id": job, "wid": "w", "ep": 3, "why": "dead_lettered"})
    world.redis.xadd(f"{KEYS.prefix}:dlq", {"other": "x"})
    assert [letter.job_id for letter in await client.dead_letters(1000)] == jobs[::-1]
    assert await client.purge(reason="dead_lettered") == 450
