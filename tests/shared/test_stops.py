"""Jobs that are to end early: cancelled, not started in time, past their deadline."""

from __future__ import annotations

import time
from typing import Any

import pytest

from octavo.terms.messages import JobStatus


def test_a_queued_job_is_cancelled_at_once(world: Any) -> None:
    job_id = world.enqueue()
    assert world.run(world.cell.cancel(job_id)) == JobStatus.CANCELLED
    assert world.run(world.cell.cancel(job_id)) == JobStatus.CANCELLED
    assert world.claim().jobs == ()
    assert [e.end.status for e in world.stream(job_id)] == [JobStatus.CANCELLED]
    assert world.redis.xlen(world.keys.outbox) == 1
    assert world.counters() == {}
    assert world.run(world.cell.cancel("g00_00000000000000000000000000")) is None


@pytest.mark.parametrize("lane", ["resume", "solo"])
def test_a_job_that_came_back_can_be_cancelled_too(world: Any, lane: str) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    why = "back" if lane == "resume" else "crashed"
    world.run(world.cell.release([(job_id, claim.token)], why=why))
    assert world.state(job_id)["lane"] == lane
    assert world.run(world.cell.cancel(job_id)) == JobStatus.CANCELLED
    assert world.claim().jobs == ()
    assert world.counters() == {}


def test_the_owner_of_a_cancelled_job_hears_it_in_its_next_reply(world: Any) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    assert world.run(world.cell.cancel(job_id)) == JobStatus.RUNNING
    beat = world.run(world.cell.heartbeat("w1", [(job_id, claim.token)], lease_ms=5000, info=b""))
    assert beat.stop == ((job_id, "cancelled"),)
    reply = world.append(claim, 0, [1])
    assert (reply.state, reply.offset, reply.reason) == ("cancel", 1, "cancelled")
    assert world.finish(claim, tokens=1, status=JobStatus.CANCELLED)
    assert world.status(job_id) == "cancelled"
    assert world.run(world.cell.cancel(job_id)) == JobStatus.CANCELLED


def test_a_cancelled_job_whose_owner_died_or_ignores_it_ends_without_him(world: Any) -> None:
    for due in ("L", "D"):
        job_id = world.enqueue()
        claim = world.claim_one()
        world.append(claim, 0, [1, 2])
        world.run(world.cell.cancel(job_id))
        world.lapse(job_id, due=due)
        assert world.reap() == 1
        end = world.stream(job_id)[-1]
        assert (end.offset, end.end.status, end.end.usage.completion_tokens) == (2, JobStatus.CANCELLED, 2)
        assert world.append(claim, 2, [3]).state == "fenced"
    assert world.counters() == {}


def test_a_job_that_no_worker_started_in_time_expires(world: Any, request_of: Any) -> None:
    by_reaper = world.enqueue(request_of(queue_timeout_s=60))
    started = world.enqueue(request_of(queue_timeout_s=60, priority="high"))
    claim = world.claim_one()
    assert claim.job_id == started
    assert world.redis.zscore("{c00}:D", started) is None  # that limit was for the wait only
    world.pass_limit(by_reaper, "qdl")
    world.reap()
    assert world.status(by_reaper) == "expired"
    assert "queue_timeout_s" in world.stream(by_reaper)[-1].end.error.message
    by_claim = world.enqueue(request_of(queue_timeout_s=60))
    world.pass_limit(by_claim, "qdl")
    assert world.claim().jobs == ()
    assert world.status(by_claim) == "expired"
    assert world.append(claim, 0, [1]).state == "ok"
    world.finish(claim, tokens=1)
    assert world.counters() == {}


def test_limits_count_from_the_submission(world: Any, request_of: Any) -> None:
    earliest = time.time() + 60
    job_id = world.enqueue(request_of(timeout_s=60, queue_timeout_s=30))
    latest = time.time() + 60
    start_by = float(world.state(job_id)["qdl"]) / 1000
    assert earliest - 1 <= start_by + 30 <= latest + 1
    assert world.redis.zscore("{c00}:D", job_id) == start_by * 1000
    assert earliest - 1 <= world.claim_one().deadline <= latest + 1
    assert earliest - 1 <= world.redis.zscore("{c00}:D", job_id) / 1000 <= latest + 1


def test_a_running_job_past_its_deadline_is_told_to_stop(world: Any, request_of: Any) -> None:
    ids = [world.enqueue(request_of(timeout_s=60)) for _ in range(3)]
    claims = {c.job_id: c for c in world.claim(max_jobs=3).jobs}
    for job_id in ids:
        world.pass_limit(job_id, "dl")
    by_append, by_beat, by_reap = (claims[i] for i in ids)
    assert world.append(by_append, 0, [1]).reason == "expired"
    beat = world.run(world.cell.heartbeat("w1", [(by_beat.job_id, by_beat.token)], lease_ms=5000, info=b""))
    assert beat.stop == ((by_beat.job_id, "expired"),)
    world.reap()
    assert world.state(by_reap.job_id)["cx"] == "expired"
    assert world.finish(by_append, tokens=1, status=JobStatus.EXPIRED)
    world.lapse(by_reap.job_id, due="D")
    world.reap()
    assert world.status(by_reap.job_id) == "expired"
    assert "timeout_s" in world.stream(by_reap.job_id)[-1].end.error.message
