"""Jobs whose workers crash: which run alone, and which are given up."""

from __future__ import annotations

from typing import Any

from octavo.models import JobStatus


def test_a_suspect_runs_alone_and_is_given_up_after_the_third_crash(world: Any) -> None:
    job_id = world.enqueue(key="k")
    assert not world.crash(job_id).solo
    assert not world.crash(job_id).solo
    other = world.enqueue()
    busy = world.claim(idle=False, max_jobs=5)
    assert [c.job_id for c in busy.jobs] == [other]
    assert busy.solo_waiting_s > 0
    assert world.crash(job_id, max_jobs=5).solo
    assert world.status(job_id) == "failed"
    end = world.stream(job_id)[-1].end
    assert (end.status, end.error.code) == (JobStatus.FAILED, "dead_lettered")
    ((_, letter),) = world.redis.xrange("{c00}:dlq")
    assert letter[b"id"].decode() == job_id
    assert world.redis.ttl(world.keys.stream(job_id)) > 3600  # no result was made, so the stream stands in for it
    for claim in busy.jobs:
        world.finish(claim, tokens=0)
    assert world.counters() == {}


def test_only_crashes_without_64_tokens_between_make_a_suspect(world: Any) -> None:
    job_id = world.enqueue()
    solo, stored = [], 0
    for made in (100, 63, 64, 0, 200, 0, 0):  # counts 1, 2, again 1, 2, again 1, 2, 3
        claim = world.claim_one()
        solo.append(claim.solo)
        if made:
            world.append(claim, stored, [7] * made)
            stored += made
        world.run(world.cell.release([(job_id, claim.token)], crashed=True))
    assert solo == [False, False, True, False, True, False, True]
    assert world.status(job_id) == "failed"


def test_a_suspect_that_completes_is_like_any_other(world: Any) -> None:
    job_id = world.enqueue()
    for _ in range(2):
        world.crash(job_id)
    claim = world.claim_one()
    assert claim.solo
    world.append(claim, 0, [1])
    assert world.finish(claim, tokens=1)
    assert world.status(job_id) == "completed"
    assert world.claim().solo_waiting_s == 0
