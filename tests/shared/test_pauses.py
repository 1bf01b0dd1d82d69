"""Paused lanes and jobs that start later, script by script on the real server."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from octavo import AsyncClient
from octavo.queue.operating.lanes import LaneCell
from octavo.terms.errors import UnknownModel
from octavo.terms.fields import Priority
from octavo.terms.messages import JobStatus

LANES = LaneCell()
MODEL = "toy"


def pause(world: Any, *classes: Priority) -> int:
    return int(world.run(LANES.pause(MODEL, classes or ("high", "normal", "batch"))))


def resume(world: Any, *classes: Priority) -> int:
    return int(world.run(LANES.resume(MODEL, classes or ("high", "normal", "batch"))))


def long_since(world: Any, *classes: Priority) -> None:
    """As if the lanes had been paused for an hour."""
    name = f"{world.keys.prefix}:pauses"
    for priority in classes:
        over, since = world.redis.hget(name, f"{priority} {MODEL}").split()
        world.redis.hset(name, f"{priority} {MODEL}", b"%s %d" % (over, int(since) - 3_600_000))


def just_past(world: Any, job_id: str) -> None:
    """As if the time for its start had ended a second ago."""
    world.redis.hset(world.keys.job(job_id), "qdl", int(time.time() * 1000) - 1000)
    world.lapse(job_id, due="D")


def test_a_paused_lane_hands_nothing_out_and_others_do(world, request_of) -> None:
    waiting = world.enqueue(request_of())
    filler = world.enqueue(request_of(priority="batch"))
    assert pause(world, "normal") == 1
    assert pause(world, "normal") == 0
    assert world.claim_one().job_id == filler
    assert world.claim(max_jobs=4).jobs == ()
    later = world.enqueue(request_of())
    assert world.claim(max_jobs=4).jobs == ()
    assert world.counters()["queued"] == 2
    assert resume(world, "normal") == 1
    assert resume(world, "normal") == 0
    assert [claim.job_id for claim in world.claim(max_jobs=4).jobs] == [waiting, later]


def test_what_comes_back_goes_on_in_a_paused_lane(world, request_of) -> None:
    job, other = world.enqueue(request_of()), world.enqueue(request_of(priority="high"))
    claims = world.claim(max_jobs=2).jobs
    (first,) = [claim for claim in claims if claim.job_id == job]
    world.append(first, 0, [1, 2])
    pause(world)
    world.run(world.cell.release([(claim.job_id, claim.token) for claim in claims], why="back"))
    world.enqueue(request_of())
    again = world.claim(max_jobs=4).jobs
    assert {claim.job_id for claim in again} == {job, other}
    (second,) = [claim for claim in again if claim.job_id == job]
    assert second.offset == 2
    assert world.finish(second, tokens=2).state == "ok"


def test_a_resumed_lane_wakes_a_worker(world, request_of) -> None:
    world.enqueue(request_of())
    pause(world)
    world.redis.delete(world.keys.bell(MODEL))
    assert world.claim().jobs == ()
    assert not world.redis.exists(world.keys.bell(MODEL)), "a paused lane wakes nobody"
    resume(world)
    assert world.redis.exists(world.keys.bell(MODEL))


def test_the_time_for_a_start_does_not_run_in_a_paused_lane(world, request_of) -> None:
    job = world.enqueue(request_of(queue_timeout_s=60))
    pause(world)
    long_since(world, "normal")
    world.redis.hset(world.keys.job(job), "qdl", int(time.time() * 1000) - 1000)
    world.lapse(job, due="D")
    for _ in range(3):
        world.reap()
    assert world.status(job) == "queued"
    resume(world)
    world.reap()
    due = world.redis.zscore(f"{world.keys.prefix}:D", job)
    assert due is not None
    assert due > time.time() * 1000 + 3_000_000, "an hour is left, as when it was paused"
    assert world.claim_one().job_id == job


def test_the_time_before_a_pause_and_after_it_counts(world, request_of) -> None:
    pause(world)
    long_since(world, "normal")
    resume(world)
    job = world.enqueue(request_of(queue_timeout_s=60))
    just_past(world, job)
    world.reap()
    assert world.status(job) == "expired", "an earlier pause is no part of its wait"


def test_a_pause_before_its_time_is_no_part_of_a_later_job_s_wait(world, request_of) -> None:
    job = world.enqueue(request_of(not_before=time.time() + 1000, queue_timeout_s=60))
    pause(world)
    long_since(world, "normal")
    resume(world)
    world.lapse(job, due="later")
    world.reap()
    just_past(world, job)
    world.reap()
    assert world.status(job) == "expired"


def test_a_deadline_holds_in_a_paused_lane(world, request_of) -> None:
    job = world.enqueue(request_of(timeout_s=60, queue_timeout_s=5))
    pause(world)
    long_since(world, "normal")
    world.pass_limit(job, "qdl")
    world.redis.hset(world.keys.job(job), "qdl", int(time.time() * 1000) - 10)
    world.reap()
    assert world.status(job) == "queued"
    assert world.redis.zscore(f"{world.keys.prefix}:D", job) == int(world.state(job)["dl"])
    world.pass_limit(job, "dl")
    world.reap()
    assert world.status(job) == "expired"


def test_a_paused_lane_does_not_age(world, request_of) -> None:
    filler = world.enqueue(request_of(priority="batch"))
    pause(world, "batch")
    for _ in range(40):
        world.enqueue(request_of())
        world.finish(world.claim_one(), tokens=0)
    assert not world.redis.hexists(f"{world.keys.prefix}:pass:{MODEL}", "batch")
    resume(world)
    high = world.enqueue(request_of(priority="high"))
    assert world.claim_one().job_id == high
    assert world.claim_one().job_id == filler


def test_a_paused_lane_and_a_parked_tenant_are_independent(world, request_of) -> None:
    world.limit(running=1)
    first, second = (world.enqueue(request_of()) for _ in range(2))
    claim = world.claim_one()
    assert claim.job_id == first
    assert world.claim(max_jobs=4).jobs == ()  # parked
    pause(world)
    world.finish(claim, tokens=0)
    assert world.claim(max_jobs=4).jobs == ()
    resume(world)
    assert world.claim_one().job_id == second


def test_a_cancelled_job_of_a_paused_lane_is_gone(world, request_of) -> None:
    job = world.enqueue(request_of())
    pause(world)
    assert world.run(world.cell.cancel(job)) is JobStatus.CANCELLED
    assert "queued" not in world.counters()


def test_an_unknown_model_is_an_error(world) -> None:
    with pytest.raises(UnknownModel):
        world.run(LANES.pause("none"))


def test_a_pause_that_something_else_spoiled_is_none(world, request_of) -> None:
    job = world.enqueue(request_of())
    world.redis.hset(f"{world.keys.prefix}:pauses", mapping={f"normal {MODEL}": "soon", "x": "1 2", "high ": "9 9"})
    world.reap()
    assert world.claim_one().job_id == job


async def test_the_client_pauses_and_the_overview_says_so(
    client: AsyncClient, redis_sync: redis.Redis, request_of
) -> None:
    await client.submit(request_of())
    assert await client.pause(MODEL, "normal") == 1
    (lane,) = await client.paused_lanes()
    assert (lane.model, lane.priority) == (MODEL, "normal")
    stats = await client.stats()
    paused = {one.priority: one.paused_since for one in stats.lanes}
    assert paused == {"high": None, "normal": lane.since, "batch": None}
    standing = await client.standing()
    assert standing.waiting[MODEL, "normal"].jobs == 1
    assert standing.waiting[MODEL, "normal"].oldest_s == 0.0, "no outage"
    assert standing.paused == {(MODEL, "normal")}
    assert await client.resume(MODEL) == 1
    assert await client.paused_lanes() == []


# Jobs that start later


def test_a_job_starts_not_before_its_time(world, request_of) -> None:
    at = time.time() + 1000
    job = world.enqueue(request_of(not_before=at, timeout_s=50, queue_timeout_s=20))
    now = world.enqueue(request_of(not_before=time.time() - 10))
    assert world.claim_one().job_id == now
    world.reap()
    assert world.claim(max_jobs=4).jobs == ()
    state = world.state(job)
    assert abs(int(state["nb"]) - at * 1000) < 2
    assert int(state["dl"]) - int(state["nb"]) == 50_000
    assert int(state["qdl"]) - int(state["nb"]) == 20_000
    counters = world.counters()
    assert (counters["queued"], counters[f"later:{MODEL}"], counters.get(f"queued:{MODEL}")) == (1, 1, None)
    world.redis.delete(world.keys.bell(MODEL))
    world.lapse(job, due="later")
    assert world.reap() == 1
    assert world.redis.exists(world.keys.bell(MODEL))
    assert world.counters()[f"queued:{MODEL}"] == 1
    claim = world.claim_one()
    assert claim.job_id == job
    assert claim.not_before == pytest.approx(at, abs=0.002)
    assert claim.request.not_before is None
    world.finish(claim, tokens=0)
    assert {name for name in world.counters() if name.startswith(("queued", "later"))} == set()


def test_a_later_job_can_be_cancelled_and_leaves_nothing(world, request_of) -> None:
    job = world.enqueue(request_of(not_before=time.time() + 1000))
    assert world.run(world.cell.cancel(job)) is JobStatus.CANCELLED
    assert not world.redis.exists(f"{world.keys.prefix}:later")
    assert "queued" not in world.counters()
    assert f"later:{MODEL}" not in world.counters()


def test_a_later_job_counts_for_the_caps(world, request_of) -> None:
    world.limit(waiting=1)
    world.enqueue(request_of(not_before=time.time() + 1000))
    with pytest.raises(Exception, match="too many queued"):
        world.enqueue(request_of())


def test_a_later_job_waits_on_in_a_paused_lane(world, request_of) -> None:
    job = world.enqueue(request_of(not_before=time.time() + 1000))
    pause(world)
    world.lapse(job, due="later")
    world.reap()
    assert world.claim(max_jobs=4).jobs == ()
    resume(world)
    assert world.claim_one().job_id == job


def test_mending_puts_later_jobs_back(world, request_of) -> None:
    job = world.enqueue(request_of(not_before=time.time() + 1000))
    world.redis.delete(f"{world.keys.prefix}:later", f"{world.keys.prefix}:q")
    from octavo.queue.calls import Call

    world.run(Call("mend", (world.keys.prefix,), (), bool))
    assert world.redis.zscore(f"{world.keys.prefix}:later", job) == int(world.state(job)["nb"])
    assert world.counters()[f"later:{MODEL}"] == 1
    assert world.claim(max_jobs=4).jobs == ()


@pytest.mark.parametrize("wrong", ["tomorrow", "2030-01-31T02:00:00", -1, 1e15])
def test_what_is_no_time(request_of, wrong) -> None:
    with pytest.raises(ValueError, match="not_before"):
        request_of(not_before=wrong)


def test_a_time_may_be_written(request_of) -> None:
    assert request_of(not_before="2030-01-31T02:00:00Z").not_before == 1_896_055_200


async def test_a_job_tells_its_time(client: AsyncClient, request_of) -> None:
    at = round(time.time()) + 1000.0
    job = await client.submit("x", model=MODEL, not_before=at)
    assert (await client.info(job.id)).not_before == at
    same = await client.submit("x", model=MODEL, idempotency_key="k", not_before=at)
    again = await client.submit("x", model=MODEL, idempotency_key="k", not_before=at + 1)
    assert again.id == same.id, "it is no part of what is repeated"
