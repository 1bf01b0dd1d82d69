"""Transitions of webhooks: events are noted with the end that they tell of, and no delivery is lost, whatever becomes
of the owner of a try."""

from __future__ import annotations

from collections import Counter

import pytest
from batch_bench import BATCHES, Bench
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tiers import is_full
from webhook_bench import CELL, HOOK_KEYS, HOOKS, LEASE_MS, HookBench

from octavo.queue.webhooks.calls import Try
from octavo.terms.batches import BatchStatus
from octavo.terms.messages import JobStatus
from octavo.terms.webhooks import MAX_ENDPOINTS

AT_ONCE = 4
MOST_WAITING, MOST_OF_TENANT = 10_000, 50_000


@pytest.fixture
def bench(redis_url: str) -> HookBench:
    return HookBench(redis_url)


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED])
def test_an_end_is_an_event_of_the_job_that_asked(bench: HookBench, status: JobStatus) -> None:
    endpoint = bench.endpoint()
    bench.submit(notify=False)
    bench.end(status)
    assert bench.kinds() == []
    job = bench.submit()
    bench.end(status)
    assert bench.kinds() == [(f"job.{status.value}", job)]
    (tried,) = bench.claim()
    assert (tried.endpoint_id, tried.event_id, tried.tries, tried.version) == (endpoint, f"evt_{job}", 0, 1)


@pytest.mark.parametrize(
    ("status", "is_cut", "kind"),
    [
        (JobStatus.COMPLETED, False, "completed"),
        (JobStatus.COMPLETED, True, "incomplete"),
        (JobStatus.FAILED, True, "failed"),
        (JobStatus.EXPIRED, False, "failed"),
        (JobStatus.CANCELLED, False, "cancelled"),
    ],
)
def test_a_background_response_ends_as_the_api_shows_it(
    bench: HookBench, status: JobStatus, is_cut: bool, kind: str
) -> None:
    bench.endpoint()
    job = bench.submit(notify=False, background=True)
    bench.end(status, is_cut=is_cut)
    assert bench.kinds() == [(f"response.{kind}", f"resp_{job}")]


def test_ends_without_an_owner_are_events_too(bench: HookBench) -> None:
    bench.endpoint()
    cancelled, late, damaged = (bench.submit(timeout_s=600.0) for _ in range(3))
    bench.run(CELL.cancel(cancelled))
    bench.redis.hset(f"{{c00}}:j:{late}", "dl", 1)
    bench.redis.hdel(f"{{c00}}:j:{damaged}", "cost")
    bench.redis.zadd("{c00}:D", {late: 1, damaged: 1})
    bench.run(CELL.reap())
    assert bench.kinds() == sorted([("job.cancelled", cancelled), ("job.expired", late), ("job.failed", damaged)])


def test_only_endpoints_of_the_tenant_that_name_the_type_hear_of_it(bench: HookBench) -> None:
    wanted = bench.endpoint("acme", "job.completed", "batch.failed")
    bench.endpoint("acme", "job.failed", "response.completed")
    bench.endpoint("zoo", "job.completed")
    bench.event()
    assert [tried.endpoint_id for tried in bench.claim()] == [wanted]


def test_the_end_of_a_batch_is_an_event(redis_url: str) -> None:
    hooks = HookBench(redis_url)
    batches = Bench(redis_url, is_first=False)
    hooks.endpoint()
    token = "t"
    batches.run(BATCHES.claim("c", token, lease_ms=LEASE_MS))
    call = BATCHES.finish(batches.batch, token, BatchStatus.FAILED)
    assert batches.run(call) == batches.run(call) == "ok"
    assert hooks.kinds() == [("batch.failed", batches.batch)]


def test_an_end_that_the_server_has_forgotten_is_the_same_event_again(bench: HookBench) -> None:
    bench.endpoint()
    job = bench.submit()
    kept = bench.redis.dump(f"{{c00}}:j:{job}")
    call = bench.end()
    (tried,) = bench.claim()
    bench.run(HOOKS.commit(tried, "ok"))
    bench.redis.restore(f"{{c00}}:j:{job}", 0, kept, replace=True)
    bench.run(CELL.end_again(call))
    assert [again.event_id for again in bench.claim()] == [tried.event_id]


def test_an_end_is_noted_once_also_if_something_spoiled_the_deliveries(bench: HookBench) -> None:
    bench.endpoint()
    bench.redis.set("{c00}:ht", "somebody else's")
    job = bench.submit()
    bench.end()
    assert bench.kinds() == [("job.completed", job)]
    assert len(bench.claim()) == 1


def test_a_try_that_is_over_is_told_by_its_owner_alone(bench: HookBench) -> None:
    bench.endpoint()
    bench.event()
    (paused,) = bench.claim()
    assert bench.claim() == []
    bench.lapse(paused)
    (again,) = bench.claim()
    assert (again.event_id, again.tries) == (paused.event_id, 0)
    assert not bench.run(HOOKS.commit(paused, "failed"))
    assert bench.run(HOOKS.commit(again, "ok"))
    assert bench.leftovers() == []


def test_a_claim_that_is_repeated_gives_the_same(bench: HookBench) -> None:
    bench.endpoint()
    for _ in range(3):
        bench.event()
    call = HOOKS.claim(lease_ms=LEASE_MS, most=2)
    first = bench.run(call).due
    assert len(first) == 2
    assert bench.run(call).due == first
    assert len(bench.claim()) == 1


def test_one_endpoint_has_four_tries_at_once(bench: HookBench) -> None:
    bench.endpoint()
    for _ in range(6):
        bench.event()
    first = bench.claim()
    assert len(first) == AT_ONCE
    assert bench.claim() == []
    bench.run(HOOKS.commit(first[0], "again", pause_ms=60_000))
    bench.run(HOOKS.commit(first[1], "ok"))
    assert len(bench.claim()) == 2


def test_tenants_take_turns_and_so_do_the_endpoints_of_each(bench: HookBench) -> None:
    busy = [bench.endpoint("acme", "job.completed") for _ in range(2)]
    quiet = bench.endpoint("zoo", "job.completed")
    for _ in range(8):
        bench.event("acme")
    bench.event("zoo")
    order = []
    while (found := bench.claim(most=1)) and len(order) < 4:
        order += [tried.endpoint_id for tried in found]
    assert quiet in order[:2]
    assert set(order) == {*busy, quiet}


def test_what_failed_to_the_end_is_kept_and_begins_anew_when_asked(bench: HookBench) -> None:
    endpoint = bench.endpoint()
    bench.event()
    (tried,) = bench.claim()
    bench.run(HOOKS.commit(tried, "failed", answer="500"))
    assert bench.claim() == []
    delivery = HOOK_KEYS.delivery(endpoint, tried.event_id)
    assert bench.redis.hmget(delivery, "st", "n", "ans") == [b"failed", b"1", b"500"]
    month = 30 * 86_400
    assert month - 60 < bench.redis.ttl(delivery) <= month
    assert bench.redis.hgetall("{c00}:hc") == {b"waiting": b"0", b"failed": b"1"}
    assert bench.run(HOOKS.resend(endpoint, "zoo")) == -1
    assert bench.run(HOOKS.resend(endpoint, "acme", "evt_other")) == 0
    assert bench.run(HOOKS.resend(endpoint, "acme", tried.event_id)) == 1
    assert bench.run(HOOKS.resend(endpoint, "acme")) == 0
    assert bench.redis.ttl(delivery) == -1
    (again,) = bench.claim()
    assert (again.event_id, again.tries) == (tried.event_id, 0)


def test_a_thousand_that_failed_are_kept_the_latest(bench: HookBench) -> None:
    endpoint = bench.endpoint()
    name = HOOK_KEYS.failed(endpoint)
    bench.redis.zadd(name, {f"old{number}": 2_000_000_000_000 + number for number in range(-1_002, 0)})
    bench.redis.zadd(name, {"ancient": 1})
    for event in ("old-1002", "old-1", "ancient"):
        bench.redis.hset(HOOK_KEYS.delivery(endpoint, event), "st", "failed")
    bench.redis.zadd(name, {f"old{number}": 1 << 50 for number in range(-1_002, -1)})
    bench.event()
    (tried,) = bench.claim()
    bench.run(HOOKS.commit(tried, "failed"))
    assert bench.redis.zcard(name) == 1_000
    assert not bench.redis.zscore(name, "ancient")
    assert not bench.redis.exists(HOOK_KEYS.delivery(endpoint, tried.event_id))  # the others are later


def fill(bench: HookBench, endpoint: str, count: int) -> None:
    """Let so many deliveries wait for an endpoint."""
    bench.redis.zadd(HOOK_KEYS.waiting(endpoint), {f"evt_{number}": 1 << 50 for number in range(count)})


def test_an_event_beyond_what_may_wait_has_failed_at_once_and_may_be_sent_again(bench: HookBench) -> None:
    full, other = bench.endpoint(), bench.endpoint()
    fill(bench, full, MOST_WAITING - 1)
    first, second = bench.event(), bench.event()
    assert sorted(tried.event_id for tried in bench.claim() if tried.endpoint_id == other) == sorted([first, second])
    delivery = HOOK_KEYS.delivery(full, second)
    assert bench.redis.hmget(delivery, "st", "n", "ans") == [b"failed", b"0", b"too_many_waiting"]
    assert bench.redis.zrange(HOOK_KEYS.failed(full), 0, -1) == [second.encode()]
    assert bench.redis.hgetall("{c00}:hc") == {b"waiting": b"3", b"failed": b"1"}
    assert bench.run(HOOKS.resend(full, "acme")) == 0
    bench.redis.zremrangebyrank(HOOK_KEYS.waiting(full), -2, -1)
    assert bench.run(HOOKS.resend(full, "acme")) == 1
    assert second in {tried.event_id for tried in bench.claim() if tried.endpoint_id == full}


def test_a_try_counts_among_what_waits(bench: HookBench) -> None:
    endpoint = bench.endpoint()
    fill(bench, endpoint, MOST_WAITING - 1)
    event = bench.event()
    assert [tried.event_id for tried in bench.claim()] == [event]
    bench.event()
    assert bench.redis.zcard(HOOK_KEYS.failed(endpoint)) == 1


def test_endpoints_of_a_tenant_share_what_may_wait(bench: HookBench) -> None:
    crowd = [bench.endpoint() for _ in range(10)]
    lonely = bench.endpoint("zoo")
    fill(bench, crowd[0], MOST_OF_TENANT // 10)
    fill(bench, lonely, MOST_OF_TENANT // 10)
    bench.event("acme")
    bench.event("zoo")
    assert [bench.redis.zcard(HOOK_KEYS.failed(one)) for one in (*crowd, lonely)] == [1, *[0] * 10]


def test_what_is_listed_no_more_is_counted(bench: HookBench) -> None:
    endpoint = bench.endpoint()
    fill(bench, endpoint, MOST_WAITING)
    bench.redis.zadd(HOOK_KEYS.failed(endpoint), {f"evt_old{number}": 1 << 50 for number in range(999)})
    bench.event()
    assert bench.redis.hget(HOOK_KEYS.endpoint(endpoint), "lost") is None
    bench.event()
    bench.event()
    assert bench.redis.hget(HOOK_KEYS.endpoint(endpoint), "lost") == b"2"
    assert bench.redis.zcard(HOOK_KEYS.failed(endpoint)) == 1_000


def test_an_endpoint_that_is_gone_is_switched_off_until_it_is_changed(bench: HookBench) -> None:
    endpoint = bench.endpoint()
    for _ in range(7):
        bench.event()
    tried, *others = bench.claim()
    bench.run(HOOKS.commit(tried, "gone", answer="410"))
    bench.event()
    assert bench.claim() == []
    for other in others:
        bench.run(HOOKS.commit(other, "again", pause_ms=0))
    bench.come_due()
    assert bench.claim() == []
    assert bench.redis.zcard(HOOK_KEYS.failed(endpoint)) == 7
    assert bench.run(HOOKS.resend(endpoint, "acme")) == -2
    assert bench.run(HOOKS.put(endpoint, "acme")) == "ok"
    bench.event()
    assert len(bench.claim()) == 1
    assert bench.run(HOOKS.resend(endpoint, "acme")) == 7


def test_a_deleted_endpoint_leaves_nothing(bench: HookBench) -> None:
    endpoint, other = bench.endpoint(), bench.endpoint()
    for _ in range(6):
        bench.event()
    tried = next(tried for tried in bench.claim() if tried.endpoint_id == endpoint)
    bench.run(HOOKS.commit(tried, "failed"))
    assert bench.run(HOOKS.drop(endpoint, "zoo")) == -1
    assert bench.run(HOOKS.drop(endpoint, "acme")) == 0
    assert not [name for name in bench.redis.scan_iter("*") if endpoint.encode() in name]
    assert endpoint.encode() not in bench.redis.zrange("{c00}:hr:acme", 0, -1)
    assert bench.redis.hget("{c00}:hc", "waiting") == b"6"
    assert bench.run(HOOKS.drop(endpoint, "acme")) == -1
    assert bench.redis.hkeys("{c00}:hs:acme") == [other.encode()]


def test_a_tenant_has_so_many_endpoints(bench: HookBench) -> None:
    for _ in range(MAX_ENDPOINTS):
        bench.endpoint()
    call = HOOKS.put("we_x", "acme", is_new=True, name="n", url="https://x", event_types=["job.failed"])
    assert bench.run(call) == "full"
    bench.endpoint("zoo")


def test_a_rotation_is_one_step_however_often_it_is_sent(bench: HookBench) -> None:
    endpoint = bench.endpoint()
    call = HOOKS.rotate(endpoint, "acme", 1, keep_s=60)
    assert bench.run(call) == bench.run(call) == 2
    assert bench.run(HOOKS.rotate(endpoint, "zoo", 2, keep_s=60)) == 0
    assert int(bench.redis.hget(HOOK_KEYS.endpoint(endpoint), "old")) > 1
    assert bench.run(HOOKS.rotate(endpoint, "acme", 2, keep_s=0)) == 3
    assert bench.redis.hget(HOOK_KEYS.endpoint(endpoint), "old") is None


def test_a_clock_that_is_set_back_holds_nothing_up(bench: HookBench) -> None:
    bench.endpoint()
    bench.event()
    bench.run(CELL.reap())
    ahead = 3_600_000
    for name in ("{c00}:ht", "{c00}:hr:acme", *bench.redis.scan_iter("{c00}:hq:*")):
        for member in bench.redis.zrange(name, 0, -1):
            bench.redis.zincrby(name, ahead, member)
    bench.redis.hincrby("{c00}:reaper", "at", ahead)
    assert bench.claim() == []
    bench.run(CELL.reap())
    assert len(bench.claim()) == 1


class Histories(RuleBasedStateMachine):
    """Jobs that end, two owners that may be paused beyond their lease at any moment, and a user."""

    url = ""

    @initialize()
    def begin(self) -> None:
        self.bench = HookBench(self.url)
        self.endpoints = [self.bench.endpoint("acme"), self.bench.endpoint("acme"), self.bench.endpoint("zoo")]
        self.open: set[tuple[str, str]] = set()
        self.failed: set[tuple[str, str]] = set()
        self.tries: list[Try] = []

    @rule(tenant=st.sampled_from(["acme", "zoo"]))
    def end_a_job(self, tenant: str) -> None:
        event = self.bench.event(tenant)
        self.open |= {(one, event) for one in (self.endpoints[:2] if tenant == "acme" else self.endpoints[2:])}

    @rule(most=st.integers(1, 6))
    def claim(self, most: int) -> None:
        found = self.bench.claim(most)
        assert {(tried.endpoint_id, tried.event_id) for tried in found} <= self.open
        self.tries += found

    @rule(place=st.integers(0, 50), outcome=st.sampled_from(["ok", "ok", "again", "failed", "back"]))
    def commit(self, place: int, outcome: str) -> None:
        if not self.tries:
            return
        tried = self.tries.pop(place % len(self.tries))
        name = (tried.endpoint_id, tried.event_id)
        if self.bench.run(HOOKS.commit(tried, outcome)):  # type: ignore[arg-type]
            assert name in self.open
            if outcome in ("ok", "failed"):
                self.open.remove(name)
            if outcome == "failed":
                self.failed.add(name)

    @rule(place=st.integers(0, 50))
    def lapse(self, place: int) -> None:
        if self.tries:
            tried = self.tries[place % len(self.tries)]
            if self.bench.redis.zscore(HOOK_KEYS.tried(tried.endpoint_id), tried.event_id):
                self.bench.lapse(tried)

    @rule(which=st.integers(0, 2))
    def resend(self, which: int) -> None:
        endpoint = self.endpoints[which]
        begun = self.bench.run(HOOKS.resend(endpoint, "acme" if which < 2 else "zoo"))
        moved = {name for name in self.failed if name[0] == endpoint}
        assert begun == len(moved)
        self.failed -= moved
        self.open |= moved

    @invariant()
    def no_endpoint_has_too_many_tries(self) -> None:
        for endpoint in self.endpoints:
            assert self.bench.redis.zcard(HOOK_KEYS.tried(endpoint)) <= AT_ONCE
        assert int(self.bench.redis.hget("{c00}:hc", "waiting") or 0) == len(self.open)

    def teardown(self) -> None:
        """Whatever was paused, all that is open is delivered, and nothing else."""
        delivered = Counter[tuple[str, str]]()
        for _ in range(len(self.open) + 2):
            for tried in self.tries:
                if self.bench.redis.zscore(HOOK_KEYS.tried(tried.endpoint_id), tried.event_id):
                    self.bench.lapse(tried)
            self.bench.come_due()
            for tried in self.bench.claim():
                assert self.bench.run(HOOKS.commit(tried, "ok"))
                delivered[tried.endpoint_id, tried.event_id] += 1
        assert delivered == Counter(self.open)
        self.bench.run(HOOKS.resend(self.endpoints[0], "acme"))


def test_any_history_delivers_all(redis_url: str) -> None:
    Histories.url = redis_url
    count = settings(max_examples=60 if is_full() else 4, stateful_step_count=40)
    run_state_machine_as_test(Histories, settings=count)
