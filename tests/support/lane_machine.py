"""A state machine of lanes: pauses, jobs that start later, kills and dead letters in any order on the real server,
beside a model of what each job may do."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo import Client
from octavo.queue.operating.lanes import CLASSES, LaneCell

LANES = LaneCell()
TENANTS = ("one", "two")
HOUR_MS, LATER_MS = 3_600_000, 10_000_000
ENDED = {"completed", "failed", "cancelled", "expired"}


@dataclass
class Job:
    priority: str
    tenant: str
    has_limit: bool
    is_later: bool
    end: str = ""
    is_listed: bool = False  # among the dead letters
    has_request: bool = False  # after its end


class LaneMachine(RuleBasedStateMachine):
    """`world` is an empty cell, `client` a client of it."""

    def __init__(self, world: Any, client: Client, request_of: Any) -> None:
        super().__init__()
        self.world, self.client, self.request_of = world, client, request_of
        self.jobs: dict[str, Job] = {}
        self.claims: dict[str, Any] = {}
        self.paused: set[str] = set()
        self.again: dict[str, str] = {}

    @rule(
        priority=st.sampled_from(CLASSES),
        tenant=st.sampled_from(TENANTS),
        has_limit=st.booleans(),
        is_later=st.booleans(),
    )
    def submit(self, priority: Any, tenant: str, has_limit: bool, is_later: bool) -> None:
        request = self.request_of(
            priority=priority,
            queue_timeout_s=60 if has_limit else None,
            not_before=time.time() + LATER_MS / 1000 if is_later else None,
        )
        call = self.world.enqueue_call(request, tenant=tenant)
        job_id = self.world.run(call).job_id
        assert self.world.run(call).job_id == job_id
        self.jobs[job_id] = Job(priority, tenant, has_limit, is_later)

    @rule(priority=st.sampled_from(CLASSES))
    def pause(self, priority: Any) -> None:
        assert self.world.run(LANES.pause("toy", [priority])) == (priority not in self.paused)
        self.paused.add(priority)

    @rule(priority=st.sampled_from(CLASSES))
    def resume(self, priority: Any) -> None:
        assert self.world.run(LANES.resume("toy", [priority])) == (priority in self.paused)
        self.paused.discard(priority)

    @rule(priority=st.sampled_from(CLASSES))
    def an_hour_passes(self, priority: Any) -> None:
        """For the jobs that wait in a lane. One with a time for its start ends, unless the lane was paused."""
        name, lane = f"{self.world.keys.prefix}:pauses", f"{priority} toy"
        if priority in self.paused:
            over, since = self.world.redis.hget(name, lane).split()
            self.world.redis.hset(name, lane, b"%s %d" % (over, int(since) - HOUR_MS))
        for job_id in self._waiting(priority):
            if self.jobs[job_id].has_limit:
                self.world.redis.hincrby(self.world.keys.job(job_id), "qdl", -HOUR_MS)
                self.world.lapse(job_id, due="D")
                if priority not in self.paused:
                    self.jobs[job_id].end = "expired"
        for _ in range(2):
            self.world.reap()

    @rule()
    def reap(self) -> None:
        self.world.reap()

    @precondition(lambda self: any(job.is_later for job in self.jobs.values()))
    @rule(data=st.data())
    def its_time_comes(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from([job_id for job_id, job in self.jobs.items() if job.is_later]))
        if self.jobs[job_id].has_limit:
            self.world.redis.hincrby(self.world.keys.job(job_id), "qdl", -LATER_MS)
        self.world.lapse(job_id, due="later")
        self.world.reap()
        self.jobs[job_id].is_later = False

    @rule()
    def claim(self) -> None:
        """All that may run, and nothing else."""
        back = {job_id for job_id in self.jobs if self._lane(job_id) == "resume"}
        expected = back | {job_id for priority in set(CLASSES) - self.paused for job_id in self._waiting(priority)}
        claims = self.world.claim(max_jobs=100, idle=False).jobs
        assert {claim.job_id for claim in claims} == expected
        self.claims |= {claim.job_id: claim for claim in claims}

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), tokens=st.integers(1, 3))
    def append(self, data: st.DataObject, tokens: int) -> None:
        claim = data.draw(st.sampled_from(list(self.claims.values())))
        stored = int(self.world.state(claim.job_id)["n"])
        assert self.world.append(claim, stored, range(tokens)).offset == stored + tokens

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(list(self.claims)))
        tokens = int(self.world.state(job_id)["n"])
        assert self.world.finish(self.claims.pop(job_id), tokens=tokens)
        self.jobs[job_id].end = "completed"

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), is_kill=st.booleans())
    def leave(self, data: st.DataObject, is_kill: bool) -> None:
        """Its worker gives it back, or dies."""
        job_id = data.draw(st.sampled_from(list(self.claims)))
        claim = self.claims.pop(job_id)
        if is_kill:
            self.world.lapse(job_id)
            self.world.reap()
        else:
            self.world.run(self.world.cell.release([(job_id, claim.token)], why="back"))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(list(self.jobs)))
        if self.jobs[job_id].end or job_id in self.claims:
            return
        self.world.run(self.world.cell.cancel(job_id))
        self.jobs[job_id].end = "cancelled"
        self.jobs[job_id].is_later = False

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """As if two engines had crashed over it alone, a third does."""
        job_id = data.draw(st.sampled_from(list(self.claims)))
        claim = self.claims.pop(job_id)
        self.world.redis.hset(self.world.keys.job(job_id), mapping={"solo": 2, "cn": self.world.state(job_id)["n"]})
        self.world.run(self.world.cell.release([(job_id, claim.token)], why="crashed"))
        job = self.jobs[job_id]
        job.end, job.is_listed, job.has_request = "failed", True, True

    @rule(tenant=st.sampled_from([None, *TENANTS]), is_cut=st.booleans())
    def requeue(self, tenant: str | None, is_cut: bool) -> None:
        """In bulk. A caller that is killed before the last step leaves the list as it was."""
        before = list(self.world.redis.xrange(f"{self.world.keys.prefix}:dlq"))
        new, failed = self.client.requeue_all(model="toy", tenant=tenant)
        assert failed == {}
        assert new.keys() == {job_id for job_id, job in self.jobs.items() if self._is_chosen(job, tenant)}
        for old, job_id in new.items():
            assert self.again.setdefault(old, job_id) == job_id, "it was submitted twice"
            self.jobs.setdefault(job_id, replace(self.jobs[old], end="", is_listed=False, has_request=False))
            self.jobs[old].is_listed = is_cut
        if is_cut:
            for entry, fields in before:
                if fields[b"id"].decode() in new:
                    self.world.redis.xadd(f"{self.world.keys.prefix}:dlq", fields)
                    assert entry

    @rule(tenant=st.sampled_from([None, *TENANTS]))
    def purge(self, tenant: str | None) -> None:
        chosen = [job for job in self.jobs.values() if self._is_chosen(job, tenant)]
        assert self.client.purge(tenant=tenant, reason="dead_lettered") == len(chosen)
        for job in chosen:
            job.is_listed = job.has_request = False

    @invariant()
    def nothing_is_lost(self) -> None:
        """Every job is where the model has it, and is counted there."""
        states = {job_id: self.world.state(job_id) for job_id in self.jobs}
        for job_id, job in self.jobs.items():
            if job.end:
                assert states[job_id]["st"] == job.end
                assert ("body" in states[job_id]) == job.has_request
            else:
                assert states[job_id]["st"] == ("running" if job_id in self.claims else "queued")
        later = {member.decode() for member in self.world.redis.zrange(self.world.keys.later, 0, -1)}
        assert later == {job_id for job_id, job in self.jobs.items() if job.is_later}
        counters = self.world.counters()
        queued = sum(state["st"] == "queued" for state in states.values())
        assert counters.get("queued", 0) == queued
        assert counters.get("later:toy", 0) == len(later)
        assert counters.get("queued:toy", 0) == queued - len(later)
        assert counters.get("running", 0) == len(self.claims)
        listed = {letter.job_id for letter in self.client.dead_letters(limit=1000)}
        assert listed == {job_id for job_id, job in self.jobs.items() if job.is_listed}

    def teardown(self) -> None:
        """All lanes go on, all times come, and every job ends exactly once."""
        for priority in CLASSES:
            self.resume(priority)
        for job_id, job in self.jobs.items():
            if job.is_later:
                self.world.lapse(job_id, due="later")
                job.is_later = False
        self.world.reap()
        for _ in range(100):
            for member in self.world.redis.zrange(f"{self.world.keys.prefix}:b:solo:toy", 0, -1):
                self.world.redis.zadd(f"{self.world.keys.prefix}:b:solo:toy", {member: 1})  # it has waited
            for claim in self.world.claim(max_jobs=100, idle=True).jobs:
                self.claims[claim.job_id] = claim
            if not self.claims:
                break
            for job_id, claim in self.claims.items():
                assert self.world.finish(claim, tokens=int(self.world.state(job_id)["n"]))
                self.jobs[job_id].end = "completed"
            self.claims = {}
        assert all(job.end for job in self.jobs.values())
        self.nothing_is_lost()
        for job_id in self.jobs:
            assert [event.end is not None for event in self.world.stream(job_id)].count(True) == 1
        assert self.world.counters() == {}

    def _is_chosen(self, job: Job, tenant: str | None) -> bool:
        return job.is_listed and tenant in (None, job.tenant)

    def _lane(self, job_id: str) -> str:
        return (self.world.redis.hget(self.world.keys.job(job_id), "lane") or b"").decode()

    def _waiting(self, priority: str) -> list[str]:
        """Jobs that wait for their first worker, and for no time."""
        return [
            job_id
            for job_id, job in self.jobs.items()
            if job.priority == priority and not job.end and not job.is_later and self._lane(job_id) == priority
        ]
