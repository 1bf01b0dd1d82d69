"""Caps of running jobs of API keys: jobs of a key at its cap are held, in their order, and hold up nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.queue.calls import Call
from octavo.queue.tenants.limits import Scope
from octavo.terms.messages import JobStatus


def of_key(world: Any, api_key: str = "k1") -> int:
    return int(world.redis.hget(f"{world.keys.prefix}:q:acme", f"running k {api_key}") or 0)


def held(world: Any, api_key: str = "k1") -> int:
    return int(world.redis.zcard(f"{world.keys.prefix}:held:acme:{api_key}"))


def test_a_key_at_its_cap_holds_up_no_other_key_and_its_jobs_keep_their_places(world: Any, request_of: Any) -> None:
    world.limit(scope=Scope("key", "k1"), running=2)
    own = [world.enqueue(key_id="k1") for _ in range(5)]
    others = [world.enqueue(key_id="k2"), world.enqueue(), world.enqueue(tenant="other", key_id="k1")]
    claims = {claim.job_id: claim for claim in world.claim(max_jobs=10).jobs}
    assert set(claims) == {*own[:2], *others}
    assert (of_key(world), held(world)) == (2, 3)
    for number in range(2, 5):
        if number == 2:
            world.enqueue(key_id="k1")
        world.finish(claims.pop(own[number - 2]), tokens=0)
        (claim,) = world.claim(max_jobs=10).jobs
        assert claim.job_id == own[number]
        claims[claim.job_id] = claim
        assert of_key(world) == 2
    assert held(world) == 1
    for claim in claims.values():
        world.finish(claim, tokens=0)
    world.finish(world.claim_one(), tokens=0)
    assert world.claim().jobs == ()
    assert not world.redis.exists(f"{world.keys.prefix}:q:acme", f"{world.keys.prefix}:held:acme:k1")


def test_held_jobs_end_as_others_do_and_wake_no_worker(world: Any, request_of: Any) -> None:
    world.limit(scope=Scope("key", "k1"), running=1)
    world.enqueue(key_id="k1")
    claim = world.claim_one()
    late, cancelled, last = (world.enqueue(request_of(queue_timeout_s=600.0), key_id="k1") for _ in range(3))
    assert world.claim(max_jobs=5).jobs == ()
    assert held(world) == 3
    world.pass_limit(late, "qdl")
    world.reap()
    assert world.run(world.cell.cancel(cancelled)) is JobStatus.CANCELLED
    assert (held(world), world.status(late)) == (1, "expired")
    world.enqueue(tenant="other")
    world.redis.delete(world.keys.bell("toy"))
    world.claim_one()
    assert not world.redis.exists(world.keys.bell("toy"))
    world.finish(claim, tokens=0)
    assert world.claim_one().job_id == last


@pytest.mark.parametrize("lost", ["held:acme:k1", "q:acme"])
def test_mend_finds_jobs_that_are_held_and_counts_those_of_keys(world: Any, lost: str) -> None:
    world.limit(scope=Scope("key", "k1"), running=1)
    world.enqueue(key_id="k1")
    claim = world.claim_one()
    waiting = world.enqueue(key_id="k1")
    assert world.claim().jobs == ()
    world.redis.delete(f"{world.keys.prefix}:{lost}")
    world.run(Call("mend", (world.keys.prefix,), (), bool))
    assert (of_key(world), held(world)) == (1, 0)
    assert world.claim().jobs == ()
    assert held(world) == 1
    world.finish(claim, tokens=0)
    assert world.claim_one().job_id == waiting


def test_jobs_that_are_held_for_no_reason_come_back(world: Any) -> None:
    world.limit(scope=Scope("key", "k1"), running=1)
    world.enqueue(key_id="k1")
    claim = world.claim_one()
    waiting = [world.enqueue(key_id="k1") for _ in range(2)]
    assert world.claim().jobs == ()
    world.redis.hset(f"{world.keys.prefix}:lim:acme", "k k1", " running=5")  # something else did
    found = [job.job_id for _ in range(4) for job in world.claim().jobs]
    assert found == waiting
    world.finish(claim, tokens=0)
