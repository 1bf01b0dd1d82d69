"""Jobs whose owners die: which run apart from others, and which are given up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.terms.messages import JobStatus


def die(world: Any, claims: list[Any], why: str) -> None:
    """An engine dies with all that it ran; `lapse` is the death of its worker, or a pause of it."""
    if why == "lapse":
        for claim in claims:
            world.lapse(claim.job_id)
        world.redis.delete(*(world.redis.keys("{c00}:died:*") or ["none"]))  # as if the last death was long ago
        world.reap()
    else:
        world.run(world.cell.release([(claim.job_id, claim.token) for claim in claims], why=why))


def make_due(world: Any) -> None:
    """As if all suspects had waited for as long as they must."""
    for name in world.redis.keys("{c00}:b:solo:*"):
        now = int(world.redis.time()[0]) * 1000
        for job_id, score in world.redis.zrange(name, 0, -1, withscores=True):
            if score > now:
                world.redis.zadd(name, {job_id: now})


def test_a_crash_alone_makes_a_suspect_and_the_third_gives_it_up(world: Any) -> None:
    job_id = world.enqueue(key="k")
    assert not world.crash(job_id).solo
    other = world.enqueue()
    busy = world.claim(idle=False, max_jobs=5)
    assert [c.job_id for c in busy.jobs] == [other]
    assert busy.solo_waiting_s > 0
    assert world.crash(job_id, max_jobs=5).solo
    assert world.status(job_id) == "queued"
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


@pytest.mark.parametrize("why", ["lapse", "killed"])
def test_what_is_killed_or_paused_is_never_given_up_and_waits_behind_others(world: Any, why: str) -> None:
    job_id = world.enqueue()
    for death in range(12):
        make_due(world)
        claim = world.claim_one(max_jobs=5)
        assert (claim.job_id, claim.solo) == (job_id, death > 1)
        die(world, [claim], why)
    assert world.status(job_id) == "queued"
    other = world.enqueue()
    assert [claim.job_id for claim in world.claim(max_jobs=5).jobs] == [other], "a suspect holds up all others"
    make_due(world)
    assert world.finish(world.claim_one(), tokens=0)


def test_a_crash_beside_others_counts_for_nobody(world: Any) -> None:
    jobs = [world.enqueue() for _ in range(2)]
    for _ in range(20):
        claims: list[Any] = []
        while len(claims) < 2:  # together, although the last one of them should run alone
            claims += world.claim(max_jobs=5).jobs
        die(world, claims, "crashed")
    assert {world.status(job) for job in jobs} == {"queued"}


def test_only_crashes_without_64_tokens_between_make_a_suspect(world: Any) -> None:
    job_id = world.enqueue()
    solo, stored = [], 0
    for made in (100, 63, 64, 0, 200, 0, 0):  # counts 1, 2, again 1, 2, again 1, 2, 3; 2 is that of a suspect
        claim = world.claim_one()
        solo.append(claim.solo)
        if made:
            world.append(claim, stored, [7] * made)
            stored += made
        world.run(world.cell.release([(job_id, claim.token)], why="crashed"))
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


def test_a_suspect_that_is_given_back_stays_one(world: Any) -> None:
    job_id = world.enqueue()
    world.crash(job_id)
    claim = world.claim_one()
    world.run(world.cell.release([(job_id, claim.token)], why="back"))
    assert world.claim_one().solo


def test_what_died_together_is_one_event_of_which_half_runs_apart_at_most(world: Any) -> None:
    jobs = [world.enqueue() for _ in range(16)]
    sizes = []
    for _ in range(4):
        claims = world.claim(max_jobs=16).jobs
        sizes.append(len(claims))
        assert {claim.solo for claim in claims} == {len(sizes) > 1}
        die(world, list(claims), "crashed")
    assert sizes == [16, 8, 4, 2]
    (alone,) = world.claim(max_jobs=16).jobs
    others = world.claim(max_jobs=16, idle=False).jobs
    assert {claim.job_id for claim in (alone, *others)} == set(jobs)
    assert not any(claim.solo for claim in others)


def test_what_a_worker_took_last_died_with_the_rest(world: Any) -> None:
    """Its leases run out one after the other."""
    jobs = [world.enqueue() for _ in range(4)]
    for _ in range(3):
        make_due(world)
        claims = world.claim(max_jobs=9).jobs + world.claim(max_jobs=9, idle=False).jobs
        assert {claim.job_id for claim in claims} == set(jobs)
        world.redis.delete("{c00}:died:w1")
        for claim in claims:
            world.lapse(claim.job_id)
            world.reap()
    assert sum(world.state(job)["lane"] == "solo" for job in jobs) <= 2


class Fleet:
    """Workers of four jobs each, what they run, and a job that crashes the engine of each."""

    def __init__(self, world: Any, seed: int, poison: str | None) -> None:
        self.world, self.poison, self.chance = world, poison, random.Random(seed)
        self.running: dict[str, list[Any]] = {"w1": [], "w2": [], "w3": []}
        self.alone: dict[str, int] = {}  # crashes of the poison in an engine of its own

    def step(self) -> None:
        worker = self.chance.choice(list(self.running))
        claims = self.running[worker]
        room = 4 - len(claims)
        if room and not any(claim.solo for claim in claims):
            new = self.world.claim(worker=worker, max_jobs=room, idle=not claims).jobs
            assert not (claims and any(claim.solo for claim in new)), "a suspect was handed to a busy worker"
            claims += new
        if not claims:
            return
        what = self.chance.choices(["finish", "killed", "lapse", "back", "wait"], [4, 2, 2, 1, 2])[0]
        if any(claim.job_id == self.poison for claim in claims):
            what = self.chance.choice(["crashed", "crashed", "killed", "lapse"])
        if what == "finish":
            assert self.world.finish(claims.pop(), tokens=0)
        elif what != "wait":
            die(self.world, claims, what)
            claims.clear()


@pytest.mark.full(but=2)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("with_poison", [True, False])
def test_whatever_dies_the_innocent_complete_and_the_guilty_ends(world: Any, seed: int, with_poison: bool) -> None:
    jobs = [world.enqueue() for _ in range(20)]
    poison = jobs[seed] if with_poison else None
    fleet = Fleet(world, seed, poison)
    for _ in range(3000):
        make_due(world)
        fleet.step()
        if all(world.status(job) not in ("queued", "running") for job in jobs):
            break
    assert {job: world.status(job) for job in jobs} == {job: "failed" if job == poison else "completed" for job in jobs}
    assert world.counters() == {}
