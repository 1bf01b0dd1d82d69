"""Every script alone: what it does, that a repeat changes nothing, that only the owner writes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from octavo.queue import wire
from octavo.queue.calls import run_many
from octavo.queue.connection import connect
from octavo.queue.protocol import Append
from octavo.terms.errors import UnknownModel
from octavo.terms.limits import Retention
from octavo.terms.messages import Chunk, JobError, JobStatus, Terminal, Usage

LIVE_KEYS = {
    "models",
    "traits",
    "reaper",
    "seq",
    "usage",
    "fold",
    "ev",
    "dlq",
    "jobs",
    "x",
    "workers",
}  # what may stay when all jobs have ended


def offsets(events: Any) -> list[int]:
    return [event.offset for event in events]


# claim


def test_a_claim_repeated_hands_out_the_same_jobs(world: Any) -> None:
    for _ in range(3):
        world.enqueue()
    call = world.cell.claim("toy", "w", max_jobs=2, max_tokens=1000, lease_ms=5000, idle=True)
    first = world.run(call)
    again = world.run(call)
    assert [c.job_id for c in first.jobs] == [c.job_id for c in again.jobs]
    assert len(first.jobs) == 2
    assert all(c.attempt == 1 for c in again.jobs)
    assert world.counters()["queued"] == 1
    assert world.counters()["running"] == 2


def test_a_claim_keeps_to_its_token_budget_but_an_idle_worker_gets_at_least_one(world: Any, request_of: Any) -> None:
    for _ in range(3):
        world.enqueue(request_of(tuple(range(100))))
    assert world.claim(max_jobs=3, max_tokens=99, idle=False).jobs == ()
    assert len(world.claim(max_jobs=3, max_tokens=99, idle=True).jobs) == 1
    assert len(world.claim(max_jobs=3, max_tokens=300, idle=False).jobs) == 2
    assert world.claim(max_jobs=0, max_tokens=300, idle=True).jobs == ()


def test_the_bell_rings_again_while_jobs_are_left(world: Any) -> None:
    for _ in range(2):
        world.enqueue()
    world.redis.lpop(world.keys.bell("toy"))
    world.claim_one()
    assert world.redis.lpop(world.keys.bell("toy")) == b"1"
    world.claim_one()
    assert world.redis.lpop(world.keys.bell("toy")) is None


def test_work_that_fits_nowhere_does_not_ring_in_circles(world: Any, request_of: Any) -> None:
    world.enqueue(request_of(tuple(range(100))))
    rings = 0
    for _ in range(50):
        rings += world.redis.lpop(world.keys.bell("toy")) is not None
        assert world.claim(max_tokens=1, idle=False).jobs == ()
    assert 1 <= rings <= 4


def test_tenants_share_by_cost_not_by_arrival(world: Any, request_of: Any) -> None:
    for _ in range(30):
        world.enqueue(tenant="greedy")
    for tenant in ("b", "c"):
        for _ in range(5):
            world.enqueue(tenant=tenant)
    order = [c.tenant for c in world.claim(max_jobs=15).jobs]
    assert sorted(order) == sorted(["greedy", "b", "c"] * 5)
    world.enqueue(request_of(max_tokens=800), tenant="big")
    for _ in range(3):
        world.enqueue(request_of(max_tokens=800), tenant="big")
    order = [c.tenant for c in world.claim(max_jobs=10).jobs]
    assert order.count("big") == 1


def test_an_idle_tenant_saves_up_no_claim_on_the_future(world: Any) -> None:
    for _ in range(20):
        world.enqueue(tenant="steady")
    world.claim(max_jobs=10)
    for _ in range(10):
        world.enqueue(tenant="late")
    order = [c.tenant for c in world.claim(max_jobs=10).jobs]
    assert 4 <= order.count("late") <= 6


def test_what_a_job_did_not_use_is_refunded(world: Any, request_of: Any) -> None:
    for tenant in ("short", "long"):
        for _ in range(6):
            world.enqueue(request_of(max_tokens=100), tenant=tenant)
    for claim in world.claim(max_jobs=2).jobs:
        tokens = 1 if claim.tenant == "short" else 100
        world.append(claim, 0, range(tokens))
        world.finish(claim, tokens=tokens)
    assert [c.tenant for c in world.claim(max_jobs=3).jobs] == ["short", "long", "short"]


def test_higher_classes_go_first_but_starve_nobody(world: Any, request_of: Any) -> None:
    for priority in ("batch", "normal", "high"):
        for _ in range(60):
            world.enqueue(request_of(priority=priority))
    order = [c.priority for c in world.claim(max_jobs=60).jobs]
    assert order[:8] == ["high"] * 8
    assert order.count("high") > order.count("normal") > order.count("batch") >= 1


def test_an_unreadable_request_is_handed_over_apart_and_spoils_no_other(world: Any) -> None:
    bad, good = world.enqueue(), world.enqueue()
    world.redis.hset(world.keys.job(bad), "body", b"\xc1garbage")
    claims = world.claim(max_jobs=2)
    assert [c.job_id for c in claims.jobs] == [good]
    assert [u.job_id for u in claims.unreadable] == [bad]


def test_a_repeated_claim_renews_the_lease(world):
    job_id = world.enqueue()
    call = world.cell.claim("toy", "w", max_jobs=1, max_tokens=99, lease_ms=5000, idle=True)
    world.run(call)
    world.lapse(job_id)
    assert len(world.run(call).jobs) == 1
    assert world.redis.zscore("{c00}:L", job_id) > 1


# append


def test_tokens_are_stored_under_their_offset_and_can_be_read_from_any(world: Any) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    assert world.append(claim, 0, [1]).offset == 1
    assert world.append(claim, 1, [2, 3, 4]).offset == 4
    assert world.finish(claim, tokens=4)
    assert [entry for entry, _ in world.redis.xrange(world.keys.stream(job_id))] == [b"1-0", b"4-0", b"4-1"]
    for after in range(5):
        events = world.stream(job_id, after)
        assert [t for e in events for t in e.token_ids] == [1, 2, 3, 4][after:]
        assert "".join(e.text for e in events) == "".join(["<1>", "<2>", "<3>", "<4>"][after:])
        assert events[-1].end.status == JobStatus.COMPLETED


def test_append_repeated_is_a_duplicate_and_ahead_of_the_store_is_a_rewind(world: Any) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    world.append(claim, 0, [1, 2])
    assert world.append(claim, 0, [1, 2]) == world.append(claim, 1, [2])
    assert world.append(claim, 0, [1, 2]).state == "dup"
    for start, tokens in ((3, [9]), (1, [2, 3])):
        reply = world.append(claim, start, tokens)
        assert (reply.state, reply.offset) == ("rewind", 2)
    assert offsets(world.stream(job_id)) == [2]


def test_a_zombie_writes_nothing(world: Any) -> None:
    job_id = world.enqueue()
    zombie = world.claim_one(worker="old")
    world.append(zombie, 0, [1])
    world.lapse(job_id)
    world.reap()
    assert world.append(zombie, 1, [66]).state == "fenced"
    owner = world.claim_one(worker="new")
    assert (owner.attempt, owner.offset) == (2, 1)
    assert world.append(zombie, 1, [66]).state == "fenced"
    assert not world.finish(zombie, tokens=1)
    assert world.run(world.cell.release([(job_id, zombie.token)], why="crashed")) == 0
    assert world.run(world.cell.heartbeat("old", [(job_id, zombie.token)], lease_ms=9, info=b"i")).lost == (job_id,)
    assert world.append(owner, 1, [2]).state == "ok"
    assert world.finish(owner, tokens=2)
    assert [t for e in world.stream(job_id) for t in e.token_ids] == [1, 2]


def test_a_write_after_everything_expired_recreates_nothing(world: Any) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    world.redis.delete(world.keys.job(job_id), world.keys.stream(job_id))
    assert world.append(claim, 0, [1]).state == "fenced"
    assert not world.finish(claim, tokens=0)
    assert world.redis.exists(world.keys.job(job_id), world.keys.stream(job_id)) == 0


def test_many_sequences_in_one_append(world: Any) -> None:
    for _ in range(63):
        world.enqueue()
    claims = world.claim(max_jobs=63).jobs
    chunk = Chunk(token_ids=(7,), texts=("x",))
    items = [Append(c.job_id, c.token, 0, chunk) for c in claims]
    second = Append(claims[0].job_id, claims[0].token, 1, Chunk(index=1, token_ids=(8, 9), texts=("y", "z")))
    replies = world.run(world.cell.append([*items, second]))
    assert [r.state for r in replies] == ["ok"] * 64
    assert [(e.offset, e.index) for e in world.stream(claims[0].job_id)] == [(1, 0), (3, 1)]
    with pytest.raises(ValueError, match="64"):
        world.cell.append([*items, second, second])
    with pytest.raises(ValueError, match="without tokens"):
        world.cell.append([Append("x", "y", 0, Chunk())])


# finish


def test_finish_repeated_is_true_again_and_writes_one_end_and_one_event(world: Any) -> None:
    job_id = world.enqueue(key="k")
    claim = world.claim_one()
    world.append(claim, 0, [1])
    assert world.finish(claim, tokens=1)
    before = world.redis.xrange(world.keys.outbox)
    assert world.finish(claim, tokens=1)
    assert world.redis.xrange(world.keys.outbox) == before
    assert [fields[b"id"].decode() for _, fields in before] == [job_id]
    assert [e.end is not None for e in world.stream(job_id)] == [False, True]
    assert world.counters() == {}


def test_a_completed_job_must_have_all_its_tokens_stored(world: Any) -> None:
    world.enqueue()
    claim = world.claim_one()
    world.append(claim, 0, [1, 2])
    reply = world.finish(claim, tokens=3)
    assert (reply.state, reply.offset, bool(reply)) == ("rewind", 2, False)
    assert world.append(claim, 2, [3]).state == "ok"
    assert world.finish(claim, tokens=3)


def test_what_ended_expires_and_leaves_nothing_but_live_keys(world: Any, request_of: Any) -> None:
    request = request_of(timeout_s=60)
    job_id = world.enqueue(request, key="k", retention=Retention(stream_s=10, result_s=20, idempotency_s=30))
    assert world.redis.ttl("{c00}:i:acme:k") == -1
    claim = world.claim_one()
    world.append(claim, 0, [1])
    world.finish(claim, tokens=1)
    assert 0 < world.redis.ttl(world.keys.stream(job_id)) <= 10
    assert 10 < world.redis.ttl(world.keys.result(job_id)) <= 20
    assert 10 < world.redis.ttl(world.keys.job(job_id)) <= 20
    assert 20 < world.redis.ttl("{c00}:i:acme:k") <= 30
    assert "body" not in world.state(job_id)
    world.redis.delete(world.keys.bell("toy"))
    assert world.immortal_keys() <= LIVE_KEYS
    world.lapse(job_id, due="x")
    world.reap()
    assert world.immortal_keys() == {"models", "traits", "reaper", "seq", "ev", "usage", "fold"}


def test_a_failure_keeps_its_error(world: Any) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    error = JobError(code="prompt_too_long", message="shorten it", param="prompt")
    terminal = Terminal(status=JobStatus.FAILED, usage=Usage(), error=error)
    assert world.run(world.cell.finish(job_id, claim.token, terminal, wire.encode_result(terminal, [])))
    assert wire.decode_error(world.redis.hget(world.keys.job(job_id), "err")) == error
    assert world.stream(job_id)[-1].end == terminal


def test_no_end_is_stored_before_its_tokens_are(world):
    job_id = world.enqueue()
    claim = world.claim_one()
    world.append(claim, 0, [1, 2, 3])
    world.redis.delete(world.keys.stream(job_id))  # the server forgets them
    world.redis.hset(world.keys.job(job_id), "n", 0)
    assert world.finish(claim, tokens=3, status=JobStatus.CANCELLED).state == "rewind"


# heartbeat, release, reap


def test_a_heartbeat_keeps_the_lease_and_tells_what_is_lost(world: Any) -> None:
    mine = world.enqueue()
    claim = world.claim_one(lease_ms=100)
    beat = world.cell.heartbeat("w1", [(mine, claim.token), ("ghost", "t")], lease_ms=60_000, info=b"info")
    assert world.run(beat).lost == ("ghost",)
    assert world.redis.zscore("{c00}:L", mine) > time.time() * 1000 + 30_000
    assert world.redis.get(world.keys.worker("w1")) == b"info"
    assert world.redis.pttl(world.keys.worker("w1")) > 0
    time.sleep(0.12)
    assert world.reap() == 0
    assert world.status(mine) == "running"


def test_released_jobs_come_back_first_with_what_they_have(world: Any, request_of: Any) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    world.append(claim, 0, [1, 2])
    world.enqueue()
    higher = world.enqueue(request_of(priority="high"))
    assert world.run(world.cell.release([(job_id, claim.token)], why="back")) == 1
    assert world.run(world.cell.release([(job_id, claim.token)], why="back")) == 0
    assert world.claim_one(worker="w2").job_id == higher
    again = world.claim_one(worker="w2")
    assert (again.job_id, again.offset, again.attempt) == (job_id, 2, 2)
    assert world.state(job_id)["crashes"] == "0"


def test_a_lease_that_ran_out_counts_as_a_crash(world: Any) -> None:
    job_id = world.enqueue()
    world.claim_one()
    assert world.reap() == 0
    world.lapse(job_id)
    assert world.reap() == 1
    assert world.reap() == 0
    assert (world.status(job_id), world.state(job_id)["crashes"]) == ("queued", "1")
    assert world.counters()["queued"] == 1
    assert "running" not in world.counters()


def test_after_a_restart_of_the_server_owners_get_time_to_renew(world: Any) -> None:
    job_id = world.enqueue()
    world.claim_one()
    world.reap()
    world.redis.hset("{c00}:reaper", "run", "somebody-else")
    world.lapse(job_id)
    assert world.reap() == 0
    assert world.reap() == 0
    assert world.status(job_id) == "running"
    world.redis.hset("{c00}:reaper", "grace", 0)
    assert world.reap() == 1


def test_a_clock_that_is_set_back_does_not_stop_takeovers(world):
    now = int(world.redis.time()[0]) * 1000
    later = {"run": world.redis.info("server")["run_id"], "at": now + 7_200_000, "grace": now + 7_203_000}
    world.redis.hset("{c00}:reaper", mapping=later)  # what reap wrote at the server's start, before NTP set it back
    job_id = world.enqueue()
    world.claim_one()
    world.lapse(job_id)
    world.reap()
    world.redis.hincrby("{c00}:reaper", "grace", -3100)  # 3.1 s later
    world.reap()
    assert world.status(job_id) == "queued"


# the runners


async def test_a_server_that_forgot_the_scripts_is_taught_again(world: Any, redis_url: str) -> None:
    world.redis.script_flush()
    job_id = world.enqueue()
    world.redis.script_flush()
    async with connect(redis_url) as connection:
        replies = await run_many(connection, [world.cell.cancel(job_id), world.cell.cancel(job_id)])
    assert replies == [JobStatus.CANCELLED, JobStatus.CANCELLED]


async def test_one_refused_call_spoils_no_other(world: Any, redis_url: str, request_of: Any) -> None:
    good, bad = world.enqueue_call(), world.enqueue_call(request_of(model="nope"))
    async with connect(redis_url) as connection:
        first, second, third = await run_many(connection, [good, bad, good])
    assert first == third
    assert isinstance(second, UnknownModel)
