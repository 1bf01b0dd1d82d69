"""Workers of one name that do not serve the same: a job with tokens goes on with an equal one only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def begun(world: Any) -> Callable[..., str]:
    """A job that a worker of digest "a" left after some tokens."""

    def begin(tokens: int = 2, *, crashes: int = 0, **options: Any) -> str:
        job_id = world.enqueue(**options)
        claim = world.claim_one(digest="a")
        if tokens:
            world.append(claim, 0, range(tokens))
        for crash in range(crashes):
            world.run(world.cell.release([(job_id, claim.token)], why="crashed"))
            if crash < crashes - 1:
                claim = world.claim_one(digest="a")
        if not crashes:
            world.run(world.cell.release([(job_id, claim.token)]))
        return job_id

    return begin


@pytest.mark.parametrize("crashes", [0, 2])
def test_a_job_with_tokens_waits_for_an_equal_worker_and_holds_up_no_other(
    world: Any, begun: Callable[..., str], crashes: int
) -> None:
    kept, other = begun(crashes=crashes), world.enqueue()
    claims = world.claim(max_jobs=5, digest="b")
    assert [claim.job_id for claim in claims.jobs] == [other]
    assert claims.solo_waiting_s == 0
    assert world.claim(max_jobs=5).jobs == ()
    (claim,) = world.claim(max_jobs=5, digest="a").jobs
    assert (claim.job_id, claim.offset, claim.solo) == (kept, 2, crashes == 2)
    assert world.append(claim, 2, [9]).state == "ok"
    assert world.finish(claim, tokens=3)
    assert world.status(kept) == "completed"


def test_a_lease_that_ran_out_binds_likewise(world: Any) -> None:
    job_id = world.enqueue()
    world.append(world.claim_one(digest="a"), 0, [1])
    world.lapse(job_id)
    world.reap()
    assert world.claim(digest="b").jobs == ()
    assert world.claim_one(digest="a").job_id == job_id


def test_a_job_without_tokens_runs_anywhere(world: Any, begun: Callable[..., str]) -> None:
    job_id = begun(tokens=0)
    claim = world.claim_one(digest="b")
    assert claim.job_id == job_id
    world.append(claim, 0, [1])
    world.run(world.cell.release([(job_id, claim.token)]))
    assert world.claim(digest="a").jobs == ()
    assert world.claim_one(digest="b").job_id == job_id


def test_only_equal_workers_are_woken(world: Any, begun: Callable[..., str]) -> None:
    begun()
    world.redis.delete(world.keys.bell("toy"))  # that of its arrival
    assert world.claim(digest="b").jobs == ()
    assert not world.redis.exists(world.keys.bell("toy"))
    assert world.redis.llen(world.keys.bell_of_equals("toy", "a")) == 1


@pytest.mark.parametrize("by", ["reap", "claim"])
def test_without_an_equal_worker_it_ends_by_its_queue_timeout(
    world: Any, begun: Callable[..., str], request_of: Any, by: str
) -> None:
    job_id = begun(request=request_of(queue_timeout_s=60))
    assert world.redis.zscore(f"{world.keys.prefix}:D", job_id) > 0
    world.pass_limit(job_id, "qdl")
    if by == "reap":
        world.reap()
    else:
        assert world.claim(digest="a").jobs == ()
    assert world.status(job_id) == "expired"
    end = world.stream(job_id)[-1].end
    assert "no worker that serves the same" in end.error.message
    assert world.counters() == {}


def test_it_can_be_cancelled(world: Any, begun: Callable[..., str]) -> None:
    job_id = begun()
    world.run(world.cell.cancel(job_id))
    assert world.status(job_id) == "cancelled"
    assert world.counters() == {}
    assert world.claim(digest="a").jobs == ()
