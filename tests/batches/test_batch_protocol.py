"""Transitions of files and batches: random histories with two owners, pauses, cancels, and a server that forgets."""

from __future__ import annotations

from collections import Counter

import pytest
from batch_bench import BATCH_KEYS, BATCHES, CELL, JOBS, KEYS, LEASE_MS, TOTAL, Bench, places_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tiers import is_full

from octavo.queue.batches.calls import Commit, NewFile, Part, Skipped
from octavo.queue.batches.keys import FILE, new_id
from octavo.queue.protocol import Fenced
from octavo.queue.tenants.limits import TenantCell
from octavo.terms.batches import BatchStatus
from octavo.terms.errors import IdempotencyConflict, InvalidRequest, QueueFull
from octavo.terms.messages import JobStatus


class Histories(RuleBasedStateMachine):
    """Two owners that may be paused at any moment, workers, a user, and a server that forgets."""

    url = ""

    @initialize(begun=st.sampled_from([True, True, True, False]))
    def begin(self, begun: bool) -> None:
        self.bench = Bench(self.url)
        self.tokens = ["", ""]
        self.cursors = [0, 0]  # where each owner believes the batch to be
        self.kept: list[tuple[bytes, bytes, int]] = []
        self.finished: list[int] = []
        if begun:
            self.claim(0, lapsed=False)
            self.validate(0)

    @property
    def state(self) -> str:
        return self.bench.field("st")

    def named(self, owner: int) -> int:
        """The owner that a rule means: mostly the one that has the batch."""
        token = self.bench.field("tok")
        current = self.tokens.index(token) if token in self.tokens else 0
        return current if owner else 1 - current

    who = st.integers(0, 4)

    @rule(owner=who, lapsed=st.booleans(), wanted=st.booleans())
    def try_to_claim(self, owner: int, lapsed: bool, wanted: bool) -> None:
        if wanted:
            self.claim(self.named(owner), lapsed)

    def claim(self, owner: int, lapsed: bool) -> None:
        if lapsed:
            self.bench.lapse()
        token = f"{owner}{len(self.tokens[owner])}x" + self.tokens[owner]
        call = BATCHES.claim(f"clerk{owner}", token, lease_ms=LEASE_MS)
        found = self.bench.run(call)
        assert self.bench.run(call) == found
        if found:
            self.tokens[owner] = token
            self.cursors[owner] = int(self.bench.field("cur") or 0)

    @rule(owner=who)
    def try_to_validate(self, owner: int) -> None:
        self.validate(self.named(owner))

    def validate(self, owner: int) -> None:
        if self.bench.run(BATCHES.begin(self.bench.batch, self.tokens[owner], total=TOTAL, model="m")) == "in_progress":
            assert self.bench.field("tok") == self.tokens[owner]

    @rule(owner=who, count=st.integers(1, 3), told=st.booleans())
    def submit(self, owner: int, count: int, told: bool) -> None:
        """A paused owner goes on from where it believed to be. `told`: it lives to move the cursor."""
        owner = self.named(owner)
        start = self.cursors[owner]
        end = min(start + count, TOTAL)
        is_owner = self.bench.field("tok") == self.tokens[owner] != ""
        try:
            for place in range(start, end):
                for index in range(JOBS[place]):
                    self.bench.submit(self.tokens[owner], place, index)
        except Fenced:
            assert not is_owner or self.state != "in_progress" or start < int(self.bench.field("cur") or 0)
            return
        if told and end > start:
            rejected = [place for place in range(start, end) if not JOBS[place]]
            call = BATCHES.advance(self.bench.batch, self.tokens[owner], start, end, rejected)
            reply = self.bench.run(call)
            assert reply.state != "ok" or is_owner
            self.cursors[owner] = reply.at if is_owner else self.cursors[owner]

    @rule(how=st.sampled_from(list(JobStatus)[2:]), as_before=st.booleans())
    def end_a_job(self, how: JobStatus, as_before: bool) -> None:
        self.bench.end_one(how, as_before=as_before)

    @rule(owner=who)
    def recheck(self, owner: int) -> None:
        owner = self.named(owner)
        members = self.bench.members(BATCH_KEYS.open_jobs(self.bench.batch))
        self.bench.run(BATCHES.recheck(self.bench.batch, self.tokens[owner], members))

    @rule(owner=who, limit=st.integers(1, 3))
    def harvest(self, owner: int, limit: int) -> None:
        owner = self.named(owner)
        state = self.bench.harvest(self.tokens[owner], limit)
        assert state in ("ok", "nothing") or self.bench.field("tok") != self.tokens[owner]

    @rule(owner=who, wanted=st.integers(0, 4))
    def leave_out_the_rest(self, owner: int, wanted: int) -> None:
        if not wanted:
            self.bench.skip(self.tokens[self.named(owner)])

    @rule(times=st.sampled_from([0, 0, 0, 0, 1, 2]))
    def cancel(self, times: int) -> None:
        for _ in range(times):
            self.bench.run(BATCHES.cancel(self.bench.batch, tenant="acme"))

    @rule(owner=who, state=st.sampled_from(["completed", "expired", "cancelled", "failed"]))
    def finish(self, owner: int, state: str) -> None:
        owner = self.named(owner)
        self.bench.run(BATCHES.close(self.bench.batch, self.tokens[owner]))
        parts = [place for part in self.bench.parts() for place in places_of(part)]
        out = NewFile(new_id(FILE), "acme", "out", "batch_output", 10, "00")
        call = BATCHES.finish(self.bench.batch, self.tokens[owner], BatchStatus(state), out=out)
        found = self.bench.run(call)
        assert self.bench.run(call) == found or found != "ok"
        if found == "ok" and not self.finished and self.bench.field("total"):
            self.finished = parts

    @rule()
    def the_server_syncs(self) -> None:
        server = self.bench.redis
        self.kept = [(name, server.dump(name), server.pttl(name)) for name in server.scan_iter(count=1000)]
        self.was_finished = self.finished

    @precondition(lambda self: self.kept)
    @rule()
    def the_server_forgets_what_came_after(self) -> None:
        pipeline = self.bench.redis.pipeline()
        pipeline.flushall()
        for name, value, ttl in self.kept:
            pipeline.restore(name, max(0, ttl), value)
        pipeline.execute()
        self.finished = self.was_finished

    @invariant()
    def every_line_is_in_one_part_and_counted_once(self) -> None:
        if not hasattr(self, "bench"):
            return
        places = Counter(place for part in self.bench.parts() for place in places_of(part))
        assert all(count == 1 for count in places.values()), places
        if self.state in ("in_progress", "cancelling") and self.bench.field("total"):
            executed = int(self.bench.field("done") or 0) + int(self.bench.field("failed") or 0)
            assert executed == int(self.bench.field("u_in") or 0) <= sum(places.values())

    @invariant()
    def a_line_has_one_job_for_each_index_at_most(self) -> None:
        if not hasattr(self, "bench"):
            return
        names = (BATCH_KEYS.open_jobs(self.bench.batch), BATCH_KEYS.ended_jobs(self.bench.batch))
        members = [member for name in names for member in self.bench.members(name)]
        jobs = Counter((member.place, member.index) for member in members)
        assert all(count == 1 for count in jobs.values())
        in_parts = {place for part in self.bench.parts() for place in places_of(part)}
        assert not in_parts & {member.place for member in members}

    def teardown(self) -> None:
        """Any new owner brings it to its end."""
        bench = self.bench
        bench.lapse()
        bench.run(BATCHES.claim("last", "last", lease_ms=LEASE_MS))
        if self.state != "finalizing":
            self.finished = bench.bring_to_end("last") or self.finished
        else:
            assert bench.run(BATCHES.finish(bench.batch, "last", BatchStatus.COMPLETED)) == "ok"
        if self.finished:
            assert sorted(self.finished) == list(range(TOTAL))
        if self.state in ("completed", "cancelled", "expired", "failed"):
            assert bench.run(BATCHES.drop_file(bench.file, tenant="acme")) == "ok"
        bench.redis.close()


def test_any_history_puts_each_line_into_one_part(redis_url: str) -> None:
    machine = type("OnThisServer", (Histories,), {"url": redis_url})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=200 if is_full() else 40, stateful_step_count=40, deadline=None)
    )


@pytest.fixture
def bench(redis_url: str) -> Bench:
    found = Bench(redis_url)
    assert found.run(BATCHES.claim("c", "t", lease_ms=LEASE_MS)) == found.batch
    assert found.run(BATCHES.begin(found.batch, "t", total=TOTAL, model="m")) == "in_progress"
    return found


def test_an_owner_that_was_paused_beyond_its_lease_does_nothing_more(bench: Bench) -> None:
    """Its line was harvested and its job forgotten: the idempotency key finds nothing any more."""
    job = bench.submit("t", 0)
    bench.run(BATCHES.advance(bench.batch, "t", 0, 1, []))
    bench.end_one()
    bench.lapse()
    bench.run(BATCHES.claim("d", "u", lease_ms=LEASE_MS))
    assert bench.harvest("u") == "ok"
    assert 0 < bench.redis.ttl(KEYS.job(job)) <= 60
    for name in bench.redis.scan_iter("{c00}:[ijtr]:*"):
        bench.redis.delete(name)
    for token in ("t", "u"):
        with pytest.raises(Fenced):
            bench.submit(token, 0)
    assert bench.run(BATCHES.advance(bench.batch, "t", 1, 2, [])).state == "fenced"
    assert bench.run(BATCHES.close(bench.batch, "t")) == ""
    assert bench.run(BATCHES.finish(bench.batch, "t", BatchStatus.COMPLETED)) == "fenced"
    assert bench.run(BATCHES.renew([(bench.batch, "t"), (bench.batch, "u")], lease_ms=5000))[1] == ["", "in_progress"]


def test_a_job_of_a_batch_keeps_all_that_it_has_until_its_line_is_in_a_part(bench: Bench) -> None:
    job = bench.submit("t", 0)
    names = [KEYS.job(job), KEYS.result(job), next(bench.redis.scan_iter("{c00}:i:*"))]
    bench.end_one()
    assert [bench.redis.ttl(name) for name in (KEYS.stream(job), *names)] == [-1, -1, -1, -1]
    assert bench.members(BATCH_KEYS.open_jobs(bench.batch)) == []
    assert bench.redis.zcard("{c00}:x") == 0
    bench.run(BATCHES.advance(bench.batch, "t", 0, 1, []))
    assert bench.harvest("t") == "ok"
    assert all(0 < bench.redis.ttl(name) <= 60 for name in names)
    assert bench.redis.exists(KEYS.stream(job)) == 0  # its result has all of it
    bench.redis.zadd("{c00}:x", {f"{job} acme": 1})
    bench.run(CELL.reap())
    assert bench.redis.zcard(KEYS.jobs) == 0


def test_the_cursor_moves_from_where_it_is_alone(bench: Bench) -> None:
    """As an owner would try that has not heard of what the server forgot."""
    assert bench.run(BATCHES.advance(bench.batch, "t", 3, 5, [4])) == ("moved", 0)
    assert bench.members(BATCH_KEYS.ended_jobs(bench.batch)) == []
    for _ in range(2):
        assert bench.run(BATCHES.advance(bench.batch, "t", 0, 3, [2])) == ("ok", 3)
    assert [member.place for member in bench.members(BATCH_KEYS.ended_jobs(bench.batch))] == [2]


def test_only_lines_before_the_cursor_are_harvested(bench: Bench) -> None:
    bench.submit("t", 0)
    bench.end_one()
    (member,) = bench.members(BATCH_KEYS.ended_jobs(bench.batch))
    commit = Commit(Part("0-0", 1, 1), 0, [member], completed=1)
    assert bench.run(BATCHES.commit(bench.batch, "t", commit)).state == "missing"


def test_lines_that_are_left_out_are_not_those_that_were_submitted(bench: Bench) -> None:
    """An owner submitted a group, and the batch was cancelled before the cursor could move."""
    whole, half = bench.submit("t", 0), bench.submit("t", 1)
    bench.run(BATCHES.cancel(bench.batch))
    naive = Commit(Part("0-0.1.2.3.4.5.6", 0, 1), 0, [], skipped=Skipped(0, TOTAL))
    assert bench.run(BATCHES.commit(bench.batch, "t", naive)).state == "moved"
    assert bench.skip("t") == "ok"
    assert [places_of(part) for part in bench.parts()] == [[1, 2, 3, 4, 5, 6]]
    assert [member.job_id for member in bench.members(BATCH_KEYS.open_jobs(bench.batch))] == [whole]
    assert bench.redis.hget(KEYS.job(half), "bt") is None
    assert bench.redis.ttl(KEYS.job(half)) == -1  # it has not ended
    assert bench.run(BATCHES.finish(bench.batch, "t", BatchStatus.CANCELLED)) == "open"
    assert sorted(bench.bring_to_end("t")) == list(range(TOTAL))


def test_a_job_that_an_older_version_ended_is_kept_once_it_is_found(bench: Bench) -> None:
    job = bench.submit("t", 0)
    bench.end_one(as_before=True)
    assert bench.redis.ttl(KEYS.job(job)) > 0
    members = bench.members(BATCH_KEYS.open_jobs(bench.batch))
    assert bench.run(BATCHES.recheck(bench.batch, "t", members)) == 1
    assert [bench.redis.ttl(name) for name in (KEYS.job(job), KEYS.result(job))] == [-1, -1]
    assert bench.members(BATCH_KEYS.ended_jobs(bench.batch)) == members


@pytest.mark.parametrize("how", ["deleted", "damaged", "erased"])
def test_a_job_that_is_lost_ends_all_the_same(bench: Bench, how: str) -> None:
    job = bench.submit("t", 0)
    if how == "deleted":
        bench.redis.delete(KEYS.job(job))
    elif how == "damaged":
        bench.redis.hset(KEYS.job(job), "n", "x")
        bench.run(CELL.cancel(job))
    else:
        bench.run(CELL.erase(job))
    members = bench.members(BATCH_KEYS.open_jobs(bench.batch))
    bench.run(BATCHES.recheck(bench.batch, "t", members))
    assert [member.job_id for member in bench.members(BATCH_KEYS.ended_jobs(bench.batch))] == [job]


def test_a_cancelled_batch_takes_no_line_and_an_ended_one_stays_as_it_is(bench: Bench) -> None:
    for _ in range(2):
        assert bench.run(BATCHES.cancel(bench.batch, tenant="acme")) == "cancelling"
    assert bench.run(BATCHES.cancel(bench.batch, tenant="zoo")) == ""
    with pytest.raises(Fenced):
        bench.submit("t", 0)
    assert bench.skip("t") == "ok"
    assert bench.run(BATCHES.finish(bench.batch, "t", BatchStatus.COMPLETED)) == "cancelling"
    assert bench.run(BATCHES.finish(bench.batch, "t", BatchStatus.CANCELLED)) == "ok"
    assert bench.run(BATCHES.cancel(bench.batch)) == "cancelled"


def test_a_file_that_a_batch_reads_stays_and_its_bytes_are_counted(bench: Bench) -> None:
    assert bench.run(BATCHES.drop_file(bench.file, tenant="acme")) == "used"
    assert bench.run(BATCHES.drop_file(bench.file, tenant="zoo")) == ""
    with pytest.raises(QueueFull, match="delete some"):
        bench.run(BATCHES.note_file(NewFile(new_id(FILE), "acme", "x", "batch", 901, "00"), cap=1000))
    short = NewFile(new_id(FILE), "acme", "x", "batch", 900, "00", expires_s=3600)
    info = bench.run(BATCHES.note_file(short, cap=1000))
    assert bench.run(BATCHES.note_file(short, cap=1000)) == info
    assert round(info.expires_at - info.created_at) == 3600
    assert bench.run(BATCHES.drop_file(short.id, expired=True)) == ""
    bench.redis.hset(BATCH_KEYS.file(short.id), "exp", 1)
    assert bench.run(BATCHES.drop_file(short.id, expired=True)) == "ok"
    assert bench.redis.hgetall("{c00}:fq") == {b"acme": b"100"}


def test_the_limits_of_a_tenant_say_how_many_bytes_of_files_it_keeps(bench: Bench) -> None:
    for tenant, limit, cap in (("acme", 150, 1000), ("zoo", 2000, 100)):
        bench.run(TenantCell().change(tenant, {"file_bytes": limit}))
        with pytest.raises(QueueFull, match=f"{limit} are allowed"):
            bench.run(BATCHES.note_file(NewFile(new_id(FILE), tenant, "x", "batch", 2001, "00"), cap=cap))
    bench.run(BATCHES.note_file(NewFile(new_id(FILE), "zoo", "x", "batch", 2000, "00"), cap=100))


def test_a_batch_is_made_once_for_each_key(bench: Bench) -> None:
    first = bench.create(idempotency_key="k")
    assert bench.create(idempotency_key="k") == first
    bench.redis.hset(BATCH_KEYS.file(bench.file), "purp", "user_data")
    with pytest.raises(InvalidRequest, match="user_data"):
        bench.create()
    bench.file = new_id(FILE)
    with pytest.raises(InvalidRequest, match="no file"):
        bench.create()
    with pytest.raises(IdempotencyConflict):
        bench.create(idempotency_key="k")


def test_a_batch_that_something_removed_lets_its_jobs_go(bench: Bench) -> None:
    job = bench.submit("t", 0)
    bench.end_one()
    bench.redis.delete(BATCH_KEYS.batch(bench.batch))
    bench.lapse()
    assert bench.run(BATCHES.claim("c", "u", lease_ms=5000)) == ""
    assert 0 < bench.redis.ttl(KEYS.job(job)) <= 60
    assert not list(bench.redis.scan_iter("{c00}:bt[oep]:*"))


def test_a_batch_is_known_for_a_month_after_its_end(bench: Bench) -> None:
    bench.run(BATCHES.cancel(bench.batch))
    bench.skip("t")
    bench.run(BATCHES.finish(bench.batch, "t", BatchStatus.CANCELLED))
    assert bench.run(BATCHES.claim("c", "u", lease_ms=5000)) == ""
    assert bench.field("st") == "cancelled"
    bench.redis.zadd("{c00}:bts", {bench.batch: 1})
    bench.run(BATCHES.claim("c", "v", lease_ms=5000))
    assert bench.field("st") == ""
    assert bench.redis.zcard(BATCH_KEYS.batches) == 0
