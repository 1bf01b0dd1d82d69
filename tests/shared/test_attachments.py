"""An attachment lives as long as its job does, and goes when that is erased."""

from __future__ import annotations

from typing import Any

import fake_worker as fake
import pytest
from waiting import until

from octavo.terms.errors import InvalidRequest, JobNotFound, QueueFull
from octavo.terms.fields import MAX_BODY_BYTES
from octavo.terms.limits import Limits
from octavo.terms.messages import JobStatus

NOBODY = "g00_00000000000000000000000000"
ATTACHED = b'{"what": "came \x00with it"}'


def test_no_worker_gets_an_attachment_and_it_outlives_the_request(world: Any) -> None:
    job_id = world.enqueue(attachment=ATTACHED)
    claim = world.claim_one()
    assert "came" not in claim.request.model_dump_json()
    world.append(claim, 0, [1])
    world.finish(claim, tokens=1)
    assert world.redis.hget(world.keys.job(job_id), "att") == ATTACHED
    assert "body" not in world.state(job_id)
    assert world.counters() == {}


def test_an_attachment_counts_as_bytes_of_its_job(world: Any) -> None:
    world.enqueue()
    size = world.counters()["bytes"]
    world.enqueue(attachment=ATTACHED)
    assert world.counters()["bytes"] == 2 * size + len(ATTACHED)
    with pytest.raises(QueueFull):
        world.enqueue(attachment=ATTACHED, limits=Limits(queued_bytes=3 * size + 2 * len(ATTACHED) - 1))
    with pytest.raises(InvalidRequest, match="attachment"):
        world.enqueue_call(attachment=b"x" * (MAX_BODY_BYTES + 1))


def test_erasing_an_ended_job_takes_back_all_of_it(world: Any, request_of: Any) -> None:
    job_id = world.enqueue(request_of(metadata={"a": "b"}), key="k", attachment=ATTACHED)
    claim = world.claim_one()
    world.append(claim, 0, [1])
    world.finish(claim, tokens=1)
    for _ in range(2):
        assert world.run(world.cell.erase(job_id, tenant="acme")) == JobStatus.COMPLETED
        assert not {"att", "body", "meta", "err"} & set(world.state(job_id))
        assert not world.redis.exists(
            world.keys.stream(job_id), world.keys.result(job_id), world.keys.idempotency("acme", "k")
        )
    assert 0 < world.redis.ttl(world.keys.job(job_id)) <= 60


@pytest.mark.parametrize("state", ["queued", "running"])
def test_erasing_an_unfinished_job_cancels_it(world: Any, state: str) -> None:
    job_id = world.enqueue(attachment=ATTACHED)
    claim = world.claim_one() if state == "running" else None
    if claim is not None:
        world.append(claim, 0, [1])
    assert world.run(world.cell.erase(job_id)) == (JobStatus.CANCELLED if claim is None else JobStatus.RUNNING)
    assert "att" not in world.state(job_id)
    if claim is not None:
        assert world.append(claim, 1, [2]).state == "cancel"
        assert world.finish(claim, tokens=2, status=JobStatus.CANCELLED)
    assert world.status(job_id) == "cancelled"
    assert {world.redis.ttl(name) for name in world.redis.keys(f"*:{job_id}")} <= set(range(1, 61))
    assert world.counters() == {}


def test_what_was_erased_does_not_come_back_with_a_repeated_submission(world: Any) -> None:
    call = world.enqueue_call(attachment=ATTACHED)
    job_id = world.run(call).job_id
    world.run(world.cell.erase(job_id))
    world.run(world.cell.enqueue_again(call))
    assert world.status(job_id) == "cancelled"
    assert world.claim().jobs == ()


def test_a_job_of_another_tenant_is_not_erased(world: Any) -> None:
    job_id = world.enqueue(attachment=ATTACHED)
    before = world.state(job_id)
    assert world.run(world.cell.erase(job_id, tenant="other")) is None
    assert world.run(world.cell.erase(NOBODY)) is None
    assert world.state(job_id) == before


async def test_the_client_attaches_and_erases(client: Any) -> None:
    job = await client.submit("hello", model=fake.MODEL, attachment=ATTACHED)
    info, attached = await client.attachment(job.id)
    assert (info.id, attached) == (job.id, ATTACHED)
    plain = await client.submit("hello", model=fake.MODEL)
    assert (await client.attachment(plain.id))[1] is None
    assert await client.erase(job.id) == JobStatus.CANCELLED
    assert (await client.attachment(job.id))[1] is None
    for ask in (client.cancel_own(job.id, tenant="other", erase=True), client.erase(NOBODY), client.attachment(NOBODY)):
        with pytest.raises(JobNotFound):
            await ask


async def test_an_erasure_that_the_server_forgot_is_told_again(client: Any, connection: Any) -> None:
    job = await client.submit("hello", model=fake.MODEL, attachment=ATTACHED)
    await client.erase(job.id)
    await connection.flushall()  # as if the server came back without its last seconds
    await fake.register(connection)
    await connection.client_kill_filter(_type="normal", skipme=True)

    async def erased() -> bool:
        return await connection.hget(client._keys.job(job.id), "st") == b"cancelled"

    await until(erased)
    assert (await client.attachment(job.id))[1] is None
