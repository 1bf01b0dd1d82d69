"""Caps of running jobs: a tenant at its cap is parked, passes it at no instant, and comes back whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.queue.calls import Call
from octavo.queue.tenants.limits import Scope
from octavo.terms.messages import JobStatus


def running(world: Any, tenant: str = "acme") -> int:
    return int(world.redis.hget(f"{world.keys.prefix}:q:{tenant}", "running") or 0)


def parked(world: Any, tenant: str = "acme") -> set[str]:
    return {place.decode() for place in world.redis.smembers(f"{world.keys.prefix}:pk:{tenant}")}


def test_a_tenant_at_its_cap_is_parked_and_others_go_on(world: Any) -> None:
    world.limit(running=2)
    for _ in range(4):
        world.enqueue()
    world.enqueue(tenant="other")
    claims = world.claim(max_jobs=10).jobs
    assert sorted(claim.tenant for claim in claims) == ["acme", "acme", "other"]
    assert parked(world) == {"normal toy"}
    assert world.claim(max_jobs=10).jobs == ()
    first = next(claim for claim in claims if claim.tenant == "acme")
    world.finish(first, tokens=0)
    assert parked(world) == set()
    assert [claim.tenant for claim in world.claim(max_jobs=10).jobs] == ["acme"]
    assert running(world) == 2


def test_it_is_parked_in_every_class_and_model_and_comes_back_in_each(world: Any, request_of: Any) -> None:
    world.know("big")
    world.limit(running=1)
    ids = [world.enqueue(request_of(priority=priority)) for priority in ("normal", "batch", "high")]
    ids += [world.enqueue(request_of(model="big"))]

    def claim() -> Any:
        found = [*world.claim(max_jobs=5).jobs]
        call = world.cell.claim("big", "w2", max_jobs=5, max_tokens=1 << 20, lease_ms=5000, idle=False)
        return [*found, *world.run(call).jobs]

    done = []
    while len(done) < 4:
        (one,) = claim()
        assert running(world) == 1
        done.append(one.job_id)
        world.finish(one, tokens=0)
    assert set(done) == set(ids)
    assert parked(world) == set()


def finish(world: Any, claim: Any) -> None:
    world.finish(claim, tokens=0)


def cancel_and_release(world: Any, claim: Any) -> None:
    world.run(world.cell.cancel(claim.job_id))
    world.run(world.cell.release([(claim.job_id, claim.token)]))


def die_after_cancel(world: Any, claim: Any) -> None:
    world.run(world.cell.cancel(claim.job_id))
    world.lapse(claim.job_id)
    world.reap()


def expire(world: Any, claim: Any) -> None:
    for _ in range(2):
        world.pass_limit(claim.job_id, "dl")
        world.reap()


def crash_for_good(world: Any, claim: Any) -> None:
    world.run(world.cell.release([(claim.job_id, claim.token)], why="crashed"))
    for _ in range(2):
        world.crash(claim.job_id)


def die_and_be_cancelled(world: Any, claim: Any) -> None:
    world.run(world.cell.release([(claim.job_id, claim.token)], why="killed"))
    world.run(world.cell.cancel(claim.job_id))


def be_damaged(world: Any, claim: Any) -> None:
    world.redis.hset(world.keys.job(claim.job_id), "ret", "rubbish")
    world.lapse(claim.job_id)
    world.reap()


def be_taken_over(world: Any, claim: Any) -> None:
    world.lapse(claim.job_id)
    world.reap()
    second = world.claim_one(worker="w2")
    assert second.job_id == claim.job_id
    world.finish(second, tokens=0)


def limit_raised(world: Any, claim: Any) -> None:
    world.limit(running=2)


def limit_gone(world: Any, claim: Any) -> None:
    world.limit(running=None)


@pytest.mark.parametrize(
    "happens",
    [
        *(finish, cancel_and_release, die_after_cancel, expire, crash_for_good, die_and_be_cancelled, be_damaged),
        *(be_taken_over, limit_raised, limit_gone),
    ],
)
def test_a_parked_tenant_comes_back_however_its_last_job_ends(world: Any, request_of: Any, happens: Callable) -> None:
    world.limit(running=1)
    world.enqueue(request_of(timeout_s=600.0))
    claim = world.claim_one()
    waiting = world.enqueue()
    assert world.claim().jobs == ()
    assert parked(world) == {"normal toy"}
    world.redis.delete(world.keys.bell("toy"))
    happens(world, claim)
    assert world.redis.exists(world.keys.bell("toy"))
    assert world.claim_one().job_id == waiting


def test_a_job_that_comes_back_goes_on_and_keeps_its_place_under_the_cap(world: Any) -> None:
    world.limit(running=1)
    first = world.enqueue()
    claim = world.claim_one()
    world.enqueue()
    world.run(world.cell.release([(first, claim.token)]))
    assert (running(world), world.counters()["queued"]) == (0, 2)
    again = world.claim(max_jobs=5).jobs
    assert [one.job_id for one in again] == [first]
    world.run(world.cell.release([(first, again[0].token)], why="crashed"))  # a suspect now
    suspect = world.claim(max_jobs=5, idle=False).jobs
    assert suspect == ()
    (solo,) = world.claim(max_jobs=5).jobs
    assert (solo.job_id, solo.solo) == (first, True)
    world.finish(solo, tokens=0)
    world.finish(world.claim_one(), tokens=0)
    assert world.counters() == {}
    assert not world.redis.exists(f"{world.keys.prefix}:q:acme")


def test_a_job_that_waits_for_an_equal_worker_keeps_its_place_meanwhile(world: Any) -> None:
    world.limit(running=1)
    first = world.enqueue()
    claim = world.claim_one(digest="a")
    world.append(claim, 0, [1])
    second = world.enqueue()
    world.run(world.cell.release([(first, claim.token)]))
    assert world.claim(max_jobs=5, digest="b").jobs == ()
    again = world.claim_one(max_jobs=5, digest="a")
    assert again.job_id == first
    world.append(again, 1, [2])
    world.finish(again, tokens=2)
    assert world.claim_one(max_jobs=5, digest="b").job_id == second


def test_a_parked_tenants_new_jobs_ring_no_bell_and_cancelled_ones_leave_it_parked(world: Any) -> None:
    world.limit(running=1)
    world.enqueue()
    claim = world.claim_one()
    world.enqueue()
    world.claim()
    world.redis.delete(world.keys.bell("toy"))
    job_id = world.enqueue()
    assert not world.redis.exists(world.keys.bell("toy"))
    assert world.run(world.cell.cancel(job_id)) is JobStatus.CANCELLED
    assert not world.redis.exists(world.keys.bell("toy"), f"{world.keys.prefix}:v:normal:toy")
    assert parked(world) == {"normal toy"}
    world.finish(claim, tokens=0)
    world.finish(world.claim_one(), tokens=0)
    assert world.counters() == {}


def test_work_of_parked_tenants_wakes_no_worker_over_and_over(world: Any) -> None:
    world.limit(running=1)
    for _ in range(3):
        world.enqueue()
    world.claim_one()
    world.claim()
    world.enqueue(tenant="other")
    world.redis.delete(world.keys.bell("toy"))
    world.claim_one()
    assert not world.redis.exists(world.keys.bell("toy"))


def test_a_parked_tenant_comes_back_without_arrears(world: Any, request_of: Any) -> None:
    world.limit(running=1)
    world.enqueue()
    claim = world.claim_one()
    for _ in range(20):
        world.enqueue()
        world.enqueue(tenant="other")
    for _ in range(12):
        assert world.claim_one().tenant == "other"
    world.finish(claim, tokens=0)
    world.limit(running=None)
    assert [world.claim_one().tenant for _ in range(8)].count("acme") in (4, 5)


@pytest.mark.parametrize("lost", ["pk:acme", "parked:toy", "both"])
def test_a_tenant_that_is_parked_for_no_reason_comes_back(world: Any, lost: str) -> None:
    """Something else has removed its place, its limit, or both."""
    world.limit(running=1)
    world.enqueue()
    claim = world.claim_one()
    waiting = world.enqueue()
    world.claim()
    for name in ("pk:acme", "parked:toy"):
        if lost in (name, "both"):
            world.redis.delete(f"{world.keys.prefix}:{name}")
    world.finish(claim, tokens=0)
    found = [*world.claim().jobs, *world.claim().jobs]
    assert [one.job_id for one in found] == [waiting]


def test_counts_that_are_wrong_park_no_tenant_for_ever(world: Any) -> None:
    world.limit(running=1)
    waiting = world.enqueue()
    world.redis.hset(f"{world.keys.prefix}:q:acme", "back", 1)
    found = [*world.claim().jobs, *world.claim().jobs]
    assert [one.job_id for one in found] == [waiting]
    world.finish(found[0], tokens=0)
    other = world.enqueue()
    world.redis.hset(f"{world.keys.prefix}:q:acme", "running", 5)
    found = [*world.claim().jobs, *world.claim().jobs]
    assert [one.job_id for one in found] == [other]


def test_mend_counts_jobs_that_come_back_and_parks_anew(world: Any) -> None:
    world.limit(running=1)
    first = world.enqueue()
    claim = world.claim_one(digest="a")
    world.append(claim, 0, [1])
    world.enqueue()
    assert world.claim(max_jobs=5).jobs == ()
    world.run(world.cell.release([(first, claim.token)]))
    world.redis.delete(f"{world.keys.prefix}:q:acme")
    world.run(Call("mend", (world.keys.prefix,), (), bool))
    assert parked(world) == set()
    assert world.claim(max_jobs=5, digest="b").jobs == ()
    assert parked(world) == {"normal toy"}
    assert [one.job_id for one in world.claim(max_jobs=5, digest="a").jobs] == [first]


def of_model(world: Any, model: str = "toy") -> int:
    return int(world.redis.hget(f"{world.keys.prefix}:q:acme", f"running m {model}") or 0)


def test_a_cap_of_a_model_holds_up_its_jobs_alone(world: Any, request_of: Any) -> None:
    world.know("big")
    world.limit(scope=Scope("model", "toy"), running=1)
    for _ in range(3):
        world.enqueue()
    world.enqueue(request_of(model="big"))
    world.enqueue(tenant="other")
    claims = world.claim(max_jobs=10).jobs
    assert sorted(claim.tenant for claim in claims) == ["acme", "other"]
    assert (parked(world), of_model(world)) == ({"normal toy"}, 1)
    big = world.run(world.cell.claim("big", "w2", max_jobs=5, max_tokens=1 << 20, lease_ms=5000, idle=False)).jobs
    assert len(big) == 1
    world.finish(big[0], tokens=0)
    assert world.claim(max_jobs=10).jobs == ()
    world.finish(next(claim for claim in claims if claim.tenant == "acme"), tokens=0)
    assert parked(world) == set()
    assert [claim.tenant for claim in world.claim(max_jobs=10).jobs] == ["acme"]
    assert of_model(world) == 1


@pytest.mark.parametrize("scope", [Scope("model", "toy"), Scope("key", "k1")])
@pytest.mark.parametrize(
    "happens",
    [
        *(finish, cancel_and_release, die_after_cancel, expire, crash_for_good, die_and_be_cancelled, be_damaged),
        *(be_taken_over, limit_gone),
    ],
)
def test_a_place_under_the_cap_of_a_model_or_a_key_is_free_however_a_job_ends(
    world: Any, request_of: Any, happens: Callable, scope: Scope
) -> None:
    world.limit(scope=scope, running=1)
    world.enqueue(request_of(timeout_s=600.0), key_id="k1")
    claim = world.claim_one()
    waiting = world.enqueue(key_id="k1")
    assert world.claim().jobs == ()
    world.redis.delete(world.keys.bell("toy"))
    if happens is limit_gone:
        world.limit(scope=scope, running=None)
    else:
        happens(world, claim)
    assert world.redis.exists(world.keys.bell("toy"))
    last = world.claim_one()
    assert last.job_id == waiting
    world.finish(last, tokens=0)
    if happens is limit_gone:
        world.finish(claim, tokens=0)
    assert not world.redis.exists(f"{world.keys.prefix}:q:acme")


def test_a_cap_of_a_model_counts_jobs_that_were_claimed_before_and_those_that_come_back(world: Any) -> None:
    first = world.enqueue()
    claim = world.claim_one()
    back = world.enqueue()
    world.run(world.cell.release([(back, world.claim_one().token)]))
    world.enqueue()
    for _ in range(2):
        world.limit(scope=Scope("model", "toy"), running=2)
        assert of_model(world) == 2
    assert [one.job_id for one in world.claim(max_jobs=5).jobs] == [back]
    assert parked(world) == {"normal toy"}
    world.redis.delete(f"{world.keys.prefix}:q:acme")
    world.run(Call("mend", (world.keys.prefix,), (), bool))
    assert of_model(world) == 2
    assert world.claim(max_jobs=5).jobs == ()
    assert claim.job_id == first
    world.finish(claim, tokens=0)
    assert len(world.claim(max_jobs=5).jobs) == 1
