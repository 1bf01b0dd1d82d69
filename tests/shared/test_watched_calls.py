"""Every call of a script is told to the watch of its cell as data: script, seconds, outcome, tenant."""

from __future__ import annotations

import dataclasses

import fake_worker as fake
import pytest
import redis
import redis.asyncio

from octavo import AsyncClient, IdempotencyConflict, JobRequest, ServerUnavailable
from octavo.queue.calls import Transition, run_many, run_sync
from octavo.queue.jobs import info_query
from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell

NOWHERE = "redis://127.0.0.1:1/0"


def words(seen: list[Transition]) -> list[tuple[str, str, str]]:
    assert all(transition.seconds >= 0 for transition in seen)
    return [(transition.script, transition.outcome, transition.tenant) for transition in seen]


async def test_calls_of_a_client_say_how_they_ended_and_for_which_tenant(
    redis_url: str, connection: redis.asyncio.Redis
) -> None:
    await fake.register(connection)
    seen: list[Transition] = []
    async with AsyncClient(redis_url, watch=seen.append) as client:
        made = await client.submit("x", model=fake.MODEL, tenant="acme", idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            await client.submit("y", model=fake.MODEL, tenant="acme", idempotency_key="k")
        await client.cancel_own(made.id, tenant="acme")
        await client.reap()
    # What is submitted before the client watches its connection is submitted once more.
    assert list(dict.fromkeys(words(seen))) == [
        ("enqueue", "ok", "acme"),
        ("enqueue", "refused", "acme"),
        ("cancel", "ok", "acme"),
        ("reap", "ok", ""),
    ]


async def test_a_call_without_an_answer_is_lost() -> None:
    seen: list[Transition] = []
    async with AsyncClient(NOWHERE, watch=seen.append) as client:
        with pytest.raises(ServerUnavailable):
            await client.submit_many([JobRequest(model=fake.MODEL, prompt="x")] * 2)
    assert words(seen) == [("enqueue", "lost", "default")] * 2


async def test_of_calls_sent_together_each_is_told_and_queries_are_not(connection: redis.asyncio.Redis) -> None:
    seen: list[Transition] = []
    cell = Cell(watch=seen.append)
    job_id = Keys().new_job_id()
    denied = dataclasses.replace(cell.probe(), keys=())  # a script that fails on its arguments
    await run_many(connection, [cell.probe(), info_query(job_id), denied, cell.detach(job_id, "s")])
    assert words(seen) == [("probe", "ok", ""), ("probe", "failed", ""), ("detach", "ok", "")]


def test_synchronous_calls_are_told_as_well(redis_url: str) -> None:
    seen: list[Transition] = []
    cell = Cell(watch=seen.append)
    with redis.Redis.from_url(redis_url) as connection:
        assert run_sync(connection, cell.probe())
        with pytest.raises(redis.ResponseError):
            run_sync(connection, dataclasses.replace(cell.probe(), keys=()))
    with redis.Redis.from_url(NOWHERE) as nowhere, pytest.raises(redis.ConnectionError):
        run_sync(nowhere, cell.probe())
    assert words(seen) == [("probe", "ok", ""), ("probe", "failed", ""), ("probe", "lost", "")]
