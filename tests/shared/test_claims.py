"""Claims and returns: what rings the bell, what a repeat hands out, what each tenant has paid for."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.terms.messages import JobStatus, Progress

LONG = tuple(range(100))


def rung(world: Any) -> bool:
    """True if the bell has been rung. Answers it."""
    return world.redis.lpop(world.keys.bell("toy")) is not None


def tenants(world: Any, count: int) -> list[str]:
    return [claim.tenant for claim in world.claim(max_jobs=count).jobs]


def make_suspect(world: Any) -> str:
    """A job that must run alone."""
    job_id = str(world.enqueue())
    for _ in range(2):
        if world.state(job_id)["lane"] != "solo":
            world.crash(job_id)
    assert world.state(job_id)["lane"] == "solo"
    return job_id


# the bell


@pytest.mark.parametrize("why", ["back", "crashed", "killed"])
def test_a_job_that_is_given_back_rings_the_bell(world: Any, why: str) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    assert rung(world)
    world.run(world.cell.release([(job_id, claim.token)], why=why))
    assert rung(world)


def test_a_job_whose_lease_ran_out_rings_the_bell(world: Any) -> None:
    job_id = world.enqueue()
    world.claim_one()
    assert rung(world)
    world.lapse(job_id)
    world.reap()
    assert rung(world)


def test_what_does_not_fit_here_wakes_another_worker(world: Any, request_of: Any) -> None:
    world.enqueue(request_of(LONG))
    assert rung(world)
    assert world.claim(max_tokens=1, idle=False).jobs == ()
    assert rung(world)


def test_suspects_that_are_left_wake_no_busy_worker(world: Any) -> None:
    make_suspect(world)
    world.enqueue()
    assert rung(world)
    assert len(world.claim(max_jobs=5, idle=False).jobs) == 1
    assert not rung(world)


# claims


def test_a_claim_repeated_after_a_release_leaves_the_job_in_the_queue(world: Any) -> None:
    job_id = world.enqueue()
    call = world.cell.claim("toy", "w", max_jobs=1, max_tokens=99, lease_ms=5000, idle=True)
    (claim,) = world.run(call).jobs
    world.run(world.cell.release([(job_id, claim.token)]))
    assert world.run(call).jobs == ()
    assert world.claim_one(worker="w2").job_id == job_id
    assert world.run(call).jobs == ()


def test_the_prompts_of_one_claim_fit_its_budget_together(world: Any, request_of: Any) -> None:
    for _ in range(3):
        world.enqueue(request_of(LONG))
    assert len(world.claim(max_jobs=3, max_tokens=250).jobs) == 2


def test_a_job_past_its_deadline_is_not_handed_out(world: Any, request_of: Any) -> None:
    job_id = world.enqueue(request_of(timeout_s=60))
    world.pass_limit(job_id, "dl")
    assert world.claim().jobs == ()
    assert world.status(job_id) == "expired"


def test_a_job_started_when_it_started_first(world: Any) -> None:
    job_id = world.enqueue()
    world.crash(job_id)
    world.redis.hset(world.keys.job(job_id), "sts", 12)
    world.claim_one()
    assert world.state(job_id)["sts"] == "12"


def test_a_job_that_has_ended_stays_so_if_something_else_queues_it(world: Any) -> None:
    job_id = world.enqueue()
    world.finish(world.claim_one(), tokens=0)
    world.redis.zadd("{c00}:b:resume:toy", {job_id: 1})
    other = world.enqueue()
    assert [claim.job_id for claim in world.claim(max_jobs=5).jobs] == [other]
    assert world.status(job_id) == "completed"


# returns


def test_progress_is_that_of_the_owner(world: Any) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    progress = Progress(attempt=1, tokens=3, score=-1.0, finished=0, text="abc")
    assert world.run(world.cell.progress(job_id, claim.token, progress))
    assert "pg" in world.state(job_id)
    world.run(world.cell.release([(job_id, claim.token)]))
    assert "pg" not in world.state(job_id)
    world.claim_one(worker="w2")
    assert not world.run(world.cell.progress(job_id, claim.token, progress))
    assert "pg" not in world.state(job_id)


def test_one_heartbeat_renews_any_number_of_leases(world: Any) -> None:
    for _ in range(1001):
        world.enqueue()
    held = [(claim.job_id, claim.token) for claim in world.claim(max_jobs=1001, lease_ms=5000).jobs]
    before = world.redis.zrange("{c00}:L", 0, -1, withscores=True)[-1][1]
    world.run(world.cell.heartbeat("w1", held, lease_ms=600_000, info=b""))
    leases = world.redis.zrange("{c00}:L", 0, -1, withscores=True)
    assert len(leases) == 1001
    assert all(expiry > before for _, expiry in leases)


def test_after_a_pause_of_the_server_owners_get_time_to_renew(world: Any) -> None:
    job_id = world.enqueue()
    world.claim_one()
    world.reap()
    world.redis.hincrby("{c00}:reaper", "at", -10_000)
    world.lapse(job_id)
    assert world.reap() == 0
    assert world.status(job_id) == "running"


def test_workers_that_are_long_gone_leave_the_list(world: Any) -> None:
    for worker in ("here", "gone"):
        world.run(world.cell.heartbeat(worker, [], lease_ms=5000, info=b""))
    world.redis.zadd(world.keys.workers, {"gone": 1})
    world.reap()
    assert world.redis.zrange(world.keys.workers, 0, -1) == [b"here"]


# cancelling


def test_a_job_of_another_tenant_cannot_be_cancelled(world: Any) -> None:
    waiting, running = world.enqueue(), world.enqueue()
    assert world.claim_one().job_id == waiting
    for job_id in (waiting, running):
        assert world.run(world.cell.cancel(job_id, tenant="other")) is None
        assert "cx" not in world.state(job_id)
    assert world.run(world.cell.cancel(running, tenant="acme")) is JobStatus.CANCELLED


def test_cancelling_again_gives_the_owner_no_more_time(world: Any) -> None:
    job_id = world.enqueue()
    world.claim_one()
    world.run(world.cell.cancel(job_id))
    world.lapse(job_id, due="D")
    world.run(world.cell.cancel(job_id))
    assert world.redis.zscore("{c00}:D", job_id) == 1


# shares


def test_a_tenant_that_comes_back_still_owes_what_it_used(world: Any, request_of: Any) -> None:
    world.enqueue(request_of(max_tokens=800), tenant="big")
    for _ in range(12):
        world.enqueue(tenant="steady")
    assert sorted(tenants(world, 2)) == ["big", "steady"]
    world.enqueue(request_of(max_tokens=800), tenant="big")
    assert tenants(world, 10) == ["steady"] * 10


def test_a_tenant_that_left_gets_back_what_its_job_did_not_use(world: Any, request_of: Any) -> None:
    world.enqueue(request_of(max_tokens=800), tenant="big")
    for _ in range(12):
        world.enqueue(tenant="steady")
    claims = world.claim(max_jobs=2).jobs
    (mine,) = (claim for claim in claims if claim.tenant == "big")
    world.append(mine, 0, [1])
    world.finish(mine, tokens=1)
    world.enqueue(request_of(max_tokens=800), tenant="big")
    assert "big" in tenants(world, 3)


def test_a_job_that_never_ran_is_not_refunded(world: Any, request_of: Any) -> None:
    for _ in range(3):
        for tenant in ("a", "b"):
            world.enqueue(request_of(max_tokens=100), tenant=tenant)
    world.run(world.cell.cancel(world.enqueue(request_of(max_tokens=800), tenant="b")))
    assert tenants(world, 4) in (["a", "b"] * 2, ["b", "a"] * 2)
