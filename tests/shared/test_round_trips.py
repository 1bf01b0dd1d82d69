"""Each question of the gateway costs one round trip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import fake_worker as fake
import pytest
import redis.asyncio

from octavo import AsyncClient, JobNotFound, JobRequest, JobStatus
from octavo.client.handles import AsyncJob
from octavo.queue import calls


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of commands in each round trip."""
    counted: list[int] = []
    exchange = calls._exchange

    async def counting(connection: Any, commands: Sequence[Any]) -> list[Any]:
        counted.append(len(commands))
        return await exchange(connection, commands)

    monkeypatch.setattr(calls, "_exchange", counting)
    return counted


@pytest.fixture
async def job(client: AsyncClient, connection: redis.asyncio.Redis) -> AsyncJob:
    """One that has ended; scripts are loaded by then."""
    submitted = await client.submit("x", model=fake.MODEL, max_tokens=3, metadata={"a": "b"})
    await fake.generate(connection, await fake.claimed(connection), delay=0, step=1)
    return submitted


async def test_a_submission_knows_how_the_job_stands(client: AsyncClient, job: AsyncJob, trips: list[int]) -> None:
    request = JobRequest(model=fake.MODEL, prompt="y", priority="high", metadata={"a": "b"})
    made = await client.submit(request, tenant="acme", idempotency_key="k")
    assert trips == [1]
    assert made.accepted == await client.info(made.id)
    again = await client.submit(request, tenant="acme", idempotency_key="k")
    assert (again.id, again.accepted) == (made.id, None)


async def test_a_job_and_its_result_come_together(client: AsyncClient, job: AsyncJob, trips: list[int]) -> None:
    info, result = await client.outcome(job.id)
    assert trips == [2]
    assert result is not None
    assert (info.status, info.tokens) == (result.status, len(result.token_ids)) == (JobStatus.COMPLETED, 3)
    assert await client.result(job.id) == result
    assert trips == [2, 2]


async def test_a_job_that_goes_on_has_no_result(client: AsyncClient, connection: redis.asyncio.Redis) -> None:
    job = await client.submit("x", model=fake.MODEL)
    info, result = await client.outcome(job.id)
    assert (info.status, result) == (JobStatus.QUEUED, None)


async def test_a_tenant_cancels_its_own_jobs_only(client: AsyncClient, job: AsyncJob, trips: list[int]) -> None:
    own = await client.submit("x", model=fake.MODEL, tenant="acme")
    with pytest.raises(JobNotFound):
        await client.cancel_own(own.id, tenant="other")
    assert (await client.info(own.id)).status == JobStatus.QUEUED
    trips.clear()
    await client.cancel_own(own.id, tenant="acme")  # the first cancel of this server taught it the script
    assert trips == [2]
    status, info = await client.cancel_own(own.id, tenant="acme")
    assert (status, info.status) == (JobStatus.CANCELLED, JobStatus.CANCELLED)
