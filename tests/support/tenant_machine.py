"""A state machine of tenants: calls in any order on the real server, beside a model of what each is charged, may run
and has used."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from buckets import level_in
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.queue.tenants.limits import Scope
from octavo.queue.tenants.usage import UsageCell
from octavo.terms.errors import RateLimited, TenantSuspended
from octavo.terms.messages import JobStatus, Terminal, Usage

TENANTS = ("one", "two")
KEY = "k1"
BUCKET = "* tokens_per_day"
PROMPT_TOKENS = 3
ENDED = {"completed", "failed", "cancelled", "expired"}
FULL = 1e9  # of a bucket that nothing was drawn from yet
ALMOST = 0.02  # what a bucket that refills with a token a day gets in a test


@dataclass
class Job:
    tenant: str
    cost: int
    est: int
    is_charged: bool
    api_key: str | None
    has_ended: bool = False
    told: Usage | None = None  # by the owner that ended it


@dataclass
class Tenant:
    capacity: int | None = None
    level: float = 0.0
    running: int | None = None
    running_of_key: int | None = None  # of the key KEY
    is_suspended: bool = False
    used: Counter[str] = field(default_factory=Counter)


class TenantMachine(RuleBasedStateMachine):
    """`world` is an empty cell."""

    def __init__(self, world: Any, request_of: Any) -> None:
        super().__init__()
        self.world, self.request_of = world, request_of
        self.jobs: dict[str, Job] = {}
        self.tenants = {name: Tenant() for name in TENANTS}
        self.claims: dict[str, Any] = {}
        self.calls: list[Any] = []

    @rule(
        name=st.sampled_from(TENANTS),
        max_tokens=st.sampled_from([1, 20, 200]),
        priority=st.sampled_from(["high", "normal", "batch"]),
        api_key=st.sampled_from([None, KEY]),
    )
    def enqueue(self, name: str, max_tokens: int, priority: str, api_key: str | None) -> None:
        tenant, request = self.tenants[name], self.request_of(max_tokens=max_tokens, priority=priority)
        call = self.world.enqueue_call(request, tenant=name, key_id=api_key)
        cost = 16 + 5 // 3 + max_tokens
        if tenant.is_suspended:
            with pytest.raises(TenantSuspended):
                self.world.run(call)
            return
        if tenant.capacity is not None and min(tenant.level, tenant.capacity) < cost - 1e-6:
            with pytest.raises(RateLimited) as refused:
                self.world.run(call)
            assert refused.value.can_retry == (cost <= tenant.capacity)
            return
        job_id = self.world.run(call).job_id
        if tenant.capacity is not None:
            tenant.level = min(tenant.level, tenant.capacity) - cost
        self.jobs[job_id] = Job(name, cost, cost - max_tokens, tenant.capacity is not None, api_key)
        self.calls.append(call)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def enqueue_again(self, data: st.DataObject) -> None:
        """A repeat changes nothing."""
        self.world.run(data.draw(st.sampled_from(self.calls)))

    @rule(max_jobs=st.integers(1, 3), idle=st.booleans())
    def claim(self, max_jobs: int, idle: bool) -> None:
        held = {name: self._held(name) for name in TENANTS}
        of_keys = {name: len(self._claimed_of_key(name)) for name in TENANTS}
        came_back = {job for job in self.jobs if self._lane(job).startswith(("resume", "solo"))}
        for claim in self.world.claim(max_jobs=max_jobs, idle=idle).jobs:
            self.claims[claim.job_id] = claim
            if claim.job_id not in came_back:
                held[claim.tenant] += 1
                cap = self.tenants[claim.tenant].running
                assert cap is None or held[claim.tenant] <= cap, "a cap was passed"
                if self.jobs[claim.job_id].api_key is not None:
                    of_keys[claim.tenant] += 1
                    cap = self.tenants[claim.tenant].running_of_key
                    assert cap is None or of_keys[claim.tenant] <= cap, "a key's cap was passed"

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), tokens=st.integers(1, 5))
    def append(self, data: st.DataObject, tokens: int) -> None:
        claim = data.draw(st.sampled_from(list(self.claims.values())))
        self.world.append(claim, int(self.world.state(claim.job_id).get("n", 0)), range(tokens))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), status=st.sampled_from([JobStatus.COMPLETED, JobStatus.FAILED]))
    def finish(self, data: st.DataObject, status: JobStatus) -> None:
        """By its owner, or by one that was its owner."""
        claim = data.draw(st.sampled_from(list(self.claims.values())))
        usage = Usage(prompt_tokens=PROMPT_TOKENS, completion_tokens=int(self.world.state(claim.job_id)["n"]))
        job = self.jobs[claim.job_id]
        for _ in range(2):
            done = self.world.run(
                self.world.cell.finish(claim.job_id, claim.token, Terminal(status=status, usage=usage), b"")
            )
            if done and not job.has_ended and job.told is None:
                job.told = usage

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), erase=st.booleans())
    def cancel(self, data: st.DataObject, erase: bool) -> None:
        job_id = data.draw(st.sampled_from(list(self.jobs)))
        self.world.run((self.world.cell.erase if erase else self.world.cell.cancel)(job_id))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), why=st.sampled_from(["back", "crashed", "killed"]))
    def release(self, data: st.DataObject, why: Any) -> None:
        claim = data.draw(st.sampled_from(list(self.claims.values())))
        self.world.run(self.world.cell.release([(claim.job_id, claim.token)], why=why))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """A lease runs out, and the reaper sees it."""
        claim = data.draw(st.sampled_from(list(self.claims.values())))
        if self.world.state(claim.job_id).get("st") == "running":
            self.world.lapse(claim.job_id)
            self.world.reap()

    @rule(name=st.sampled_from(TENANTS), capacity=st.sampled_from([None, 30, 100, 1000]))
    def set_bucket(self, name: str, capacity: int | None) -> None:
        tenant = self.tenants[name]
        limit = None if capacity is None else 1
        self.world.limit(tenant=name, tokens_per_day=limit, tokens_per_day_capacity=capacity)
        if tenant.capacity is None or capacity is None:
            tenant.level = FULL
        elif tenant.level < FULL:
            tenant.level = min(tenant.level, tenant.capacity)  # it filled up to that before the change
        tenant.capacity = capacity

    @rule(name=st.sampled_from(TENANTS), running=st.sampled_from([None, 1, 2]))
    def set_running(self, name: str, running: int | None) -> None:
        self.world.limit(tenant=name, running=running)
        self.tenants[name].running = running

    @rule(name=st.sampled_from(TENANTS), running=st.sampled_from([None, 1, 2]))
    def set_running_of_key(self, name: str, running: int | None) -> None:
        self.world.limit(tenant=name, scope=Scope("key", KEY), running=running)
        self.tenants[name].running_of_key = running

    @rule(name=st.sampled_from(TENANTS), weight=st.sampled_from([None, 500, 3000]))
    def set_weight(self, name: str, weight: int | None) -> None:
        self.world.limit(tenant=name, weight=weight)

    @rule(name=st.sampled_from(TENANTS), is_on=st.booleans())
    def suspend(self, name: str, is_on: bool) -> None:
        self.world.limit(tenant=name, suspended=1 if is_on else None)
        self.tenants[name].is_suspended = is_on

    @invariant()
    def settled(self) -> None:
        """A job that has ended is settled once, and in the account once."""
        for job_id, job in self.jobs.items():
            state = self.world.state(job_id)
            if job.has_ended or state["st"] not in ENDED:
                continue
            job.has_ended = True
            self.claims.pop(job_id, None)
            told = job.told
            ran = int(state["ep"]) > 0
            stored = int(state["n"])
            used = told.prompt_tokens + told.completion_tokens if told else job.est + stored if ran else 0
            tenant = self.tenants[job.tenant]
            is_touched = tenant.level < FULL or used > job.cost
            if job.is_charged and tenant.capacity is not None and is_touched:
                tenant.level = min(tenant.capacity, min(tenant.level, tenant.capacity) + job.cost - used)
            tenant.used.update(
                requests=1, failures=state["st"] == "failed", output=stored, input=told.prompt_tokens if told else 0
            )
        for name, tenant in self.tenants.items():
            self._check_bucket(name, tenant)
            self._check_account(name, tenant)

    @invariant()
    def counted(self) -> None:
        """Counters are of the jobs, and a tenant with a backlog is in the list of tenants or parked at its cap."""
        states = {job_id: self.world.state(job_id) for job_id in self.jobs}
        for name, tenant in self.tenants.items():
            own = [states[job_id] for job_id, job in self.jobs.items() if job.tenant == name]
            counts = {
                "running": sum(state["st"] == "running" for state in own),
                "queued": sum(state["st"] == "queued" for state in own),
                "back": sum(state.get("lane", "").startswith(("resume", "solo")) for state in own),
            }
            if tenant.running_of_key is not None:
                counts[f"running k {KEY}"] = len(self._claimed_of_key(name))
            for what, count in counts.items():
                assert int(self.world.redis.hget(f"{{c00}}:q:{name}", what) or 0) == count, (name, what)
            parked = {place.decode().split()[0] for place in self.world.redis.smembers(f"{{c00}}:pk:{name}")}
            if parked:
                assert tenant.running is not None
                assert counts["running"] + counts["back"] >= tenant.running
            for priority in ("high", "normal", "batch"):
                listed = self.world.redis.zscore(f"{{c00}}:v:{priority}:toy", name) is not None
                waits = self.world.redis.exists(f"{{c00}}:b:{priority}:{name}:toy") == 1
                assert not (listed and priority in parked)
                assert not waits or listed or priority in parked

    def teardown(self) -> None:
        """Without limits all jobs end, and nothing is left of them."""
        for name in TENANTS:
            self.world.limit(tenant=name, running=None)
            self.world.limit(tenant=name, scope=Scope("key", KEY), running=None)
            self.tenants[name].running = self.tenants[name].running_of_key = None
        for _ in range(200):
            for claim in list(self.claims.values()):
                self.world.run(self.world.cell.cancel(claim.job_id))
                self.world.run(self.world.cell.release([(claim.job_id, claim.token)]))
            for member in self.world.redis.zrange("{c00}:b:solo:toy", 0, -1):
                self.world.redis.zadd("{c00}:b:solo:toy", {member: 1})  # it has waited
            self.settled()
            found = self.world.claim(max_jobs=8).jobs
            self.claims |= {claim.job_id: claim for claim in found}
            if all(job.has_ended for job in self.jobs.values()):
                break
        self.settled()
        self.counted()
        assert all(job.has_ended for job in self.jobs.values())
        assert self.world.counters() == {}

    def _held(self, name: str) -> int:
        running, back = self.world.redis.hmget(f"{{c00}}:q:{name}", "running", "back")
        return int(running or 0) + int(back or 0)

    def _claimed_of_key(self, name: str) -> list[str]:
        """Jobs of the key that have a place under its cap."""
        own = [job_id for job_id, job in self.jobs.items() if (job.tenant, job.api_key) == (name, KEY)]
        states = {job_id: self.world.state(job_id) for job_id in own}
        return [
            job_id
            for job_id, state in states.items()
            if state["st"] == "running" or state.get("lane", "").startswith(("resume", "solo"))
        ]

    def _lane(self, job_id: str) -> str:
        return (self.world.redis.hget(self.world.keys.job(job_id), "lane") or b"").decode()

    def _check_bucket(self, name: str, tenant: Tenant) -> None:
        stored = self.world.redis.hget(self.world.keys.buckets(name), BUCKET)
        if tenant.capacity is None:
            assert stored is None
            return
        level = level_in(stored) if stored else tenant.capacity
        assert min(level, tenant.capacity) == pytest.approx(min(tenant.level, tenant.capacity), abs=ALMOST), name

    def _check_account(self, name: str, tenant: Tenant) -> None:
        now = time.time()
        found: Counter[str] = Counter()
        for row in self.world.run(UsageCell().read(name, now - 86_400, now + 86_400)):
            sums = row.sums
            found.update(
                requests=sums.requests, failures=sums.failures, output=sums.output_tokens, input=sums.input_tokens
            )
        assert found == tenant.used, name
