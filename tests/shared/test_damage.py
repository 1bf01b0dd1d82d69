"""Jobs over which something else has written: each ends, and holds up no other."""

from __future__ import annotations

from typing import Any

import pytest

from octavo import AsyncClient, JobNotFound
from octavo.queue import wire
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage


def spoil_hash(world: Any, job_id: str) -> None:
    world.redis.set(world.keys.job(job_id), "another program's")


def lose_fields(world: Any, job_id: str) -> None:
    world.redis.hdel(world.keys.job(job_id), "ret", "body")


def lose_hash(world: Any, job_id: str) -> None:
    world.redis.delete(world.keys.job(job_id))


def spoil_stream(world: Any, job_id: str) -> None:
    world.redis.set(world.keys.stream(job_id), "another program's")


@pytest.mark.parametrize("spoil", [spoil_hash, lose_fields])
def test_a_damaged_job_ends_and_holds_up_nobody_elses_leases_and_deadlines(
    world: Any, request_of: Any, spoil: Any
) -> None:
    jobs = [world.enqueue(request_of(timeout_s=60)) for _ in range(3)]
    claims = {claim.job_id: claim for claim in world.claim(max_jobs=3).jobs}
    world.append(claims[jobs[0]], 0, [1, 2])
    spoil(world, jobs[0])
    held = [(job_id, claims[job_id].token) for job_id in jobs]
    reply = world.run(world.cell.heartbeat("w1", held, lease_ms=5000, info=b""))
    assert set(reply.lost) <= {jobs[0]}
    world.lapse(jobs[0])
    world.lapse(jobs[0], due="D")
    world.lapse(jobs[1])
    assert world.reap() == 2
    assert world.status(jobs[1]) == "queued"
    assert world.status(jobs[2]) == "running"
    assert world.status(jobs[0]) == "failed"
    *tokens, last = world.stream(jobs[0])
    assert [event.offset for event in tokens] == [2]
    assert (last.offset, last.end.error.code) == (2, "job_damaged")
    assert world.redis.ttl(f"{{c00}}:aside:j:{jobs[0]}") > 3600
    assert world.reap() == 0
    for claim in world.claim(max_jobs=5).jobs:
        world.finish(claim, tokens=0)
    world.finish(claims[jobs[2]], tokens=0)
    assert {name: count for name, count in world.counters().items() if name != "bytes"}.keys() <= {"running"}


@pytest.mark.parametrize("why", ["back", "killed", "crashed"])
def test_a_damaged_job_is_released_with_all_the_others(world: Any, why: str) -> None:
    first, second = world.enqueue(), world.enqueue()
    claims = world.claim(max_jobs=2).jobs
    lose_fields(world, first)
    assert world.run(world.cell.release([(c.job_id, c.token) for c in claims], why=why)) == 2
    assert (world.status(first), world.status(second)) == ("failed", "queued")
    assert not world.redis.exists("{c00}:L")
    assert world.stream(first)[-1].end.error.code == "job_damaged"


@pytest.mark.parametrize("spoil", [spoil_hash, lose_fields, lose_hash])
@pytest.mark.parametrize("lane", ["normal", "resume", "solo"])
def test_a_damaged_job_in_the_queue_does_not_block_those_behind_it(world: Any, spoil: Any, lane: str) -> None:
    first = world.enqueue()
    for why in {"normal": [], "resume": ["back"], "solo": ["crashed"]}[lane]:
        claim = world.claim_one()
        world.run(world.cell.release([(claim.job_id, claim.token)], why=why))
    assert world.state(first)["lane"] == lane
    second = world.enqueue()
    spoil(world, first)
    claim = world.claim_one(max_jobs=5)
    assert claim.job_id == second
    world.finish(claim, tokens=0)
    assert world.claim(max_jobs=5).jobs == ()
    assert world.counters().get("running", 0) == 0
    if world.redis.exists(world.keys.job(first)):
        assert world.stream(first)[-1].end.error.code == "job_damaged"


@pytest.mark.parametrize("end", ["crash", "cancel", "finish"])
def test_what_stands_in_the_place_of_a_stream_is_set_aside_and_the_job_ends(world: Any, end: str) -> None:
    job_id, other = world.enqueue(), world.enqueue()
    claim = world.claim_one()
    spoil_stream(world, job_id)
    match end:
        case "crash":
            world.run(world.cell.release([(job_id, claim.token)], why="crashed"))
            for _ in range(2):
                world.crash(job_id, max_jobs=5)
        case "cancel":
            world.run(world.cell.cancel(job_id))
            world.lapse(job_id)
            assert world.reap() == 1
        case "finish":
            assert world.finish(claim, tokens=0)
            assert not world.redis.exists(world.keys.stream(job_id))  # its readers find all in the result
    assert world.status(job_id) == {"crash": "failed", "cancel": "cancelled", "finish": "completed"}[end]
    if end != "finish":
        assert world.stream(job_id)[-1].end.status == world.status(job_id)
    assert world.redis.get(f"{{c00}}:aside:t:{job_id}") == b"another program's"
    assert world.status(other) in ("queued", "running")


def test_cancelling_a_damaged_job_ends_it(world: Any) -> None:
    job_id = world.enqueue()
    lose_fields(world, job_id)
    assert world.run(world.cell.cancel(job_id)) is JobStatus.FAILED
    assert world.claim().jobs == ()
    assert world.counters() == {}
    assert len(world.redis.xrange("{c00}:dlq")) == 1


def test_a_damaged_job_that_has_an_end_gets_no_other(world: Any) -> None:
    job_id = world.enqueue()
    world.finish(world.claim_one(), tokens=0)
    world.redis.hset(world.keys.job(job_id), "st", "running")
    lose_fields(world, job_id)
    world.run(world.cell.cancel(job_id))
    assert [event.end.status for event in world.stream(job_id)] == [JobStatus.COMPLETED]


def test_a_stream_with_a_strange_entry_holds_up_nobody(world, request_of):
    job_id, other = (world.enqueue(request_of(timeout_s=60)) for _ in range(2))
    world.claim(max_jobs=2)
    world.redis.xadd(world.keys.stream(job_id), {"another": "program's"})
    world.run(world.cell.cancel(job_id))
    world.lapse(job_id, due="D")
    world.reap()
    assert (world.status(job_id), world.status(other)) == ("cancelled", "running")
    assert world.counters()["running"] == 1


@pytest.mark.parametrize(("name", "value"), [("lane", None), ("qdl", "x"), ("dl", "x"), ("seed", "x"), ("n", "1.5")])
def test_one_spoiled_field_does_not_block_the_queue(world, name, value):
    spoiled, other = world.enqueue(), world.enqueue()
    key = world.keys.job(spoiled)
    world.redis.hdel(key, name)
    if value is not None:
        world.redis.hset(key, name, value)
    assert other in {claim.job_id for claim in world.claim(max_jobs=5).jobs}


def test_the_key_of_a_damaged_job_expires(world):
    job_id = world.enqueue(key="k")
    world.redis.hdel(world.keys.job(job_id), "bytes")
    world.run(world.cell.cancel(job_id))
    assert world.redis.ttl("{c00}:i:acme:k") > 0


async def test_a_stream_that_lost_tokens_is_no_stream(world, redis_url):
    """Its readers get all of it from the result once it has ended, and an error before that."""
    job_id = world.enqueue()
    claim = world.claim_one()
    for start in range(2):
        world.append(claim, start, [start])
    world.redis.xdel(world.keys.stream(job_id), "1-0")
    async with AsyncClient(redis_url) as client:
        with pytest.raises(JobNotFound, match="damaged"):
            [event async for event in client.events(job_id)]
        terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(completion_tokens=2))
        result = wire.encode_result(terminal, [Chunk(token_ids=(0, 1), texts=("a", "b"))])
        world.run(world.cell.finish(job_id, claim.token, terminal, result))
        events = [event async for event in client.events(job_id)]
    assert [token for event in events for token in event.token_ids] == [0, 1]


def test_a_stream_of_another_kind_is_written_anew(world):
    job_id = world.enqueue()
    claim = world.claim_one()
    world.append(claim, 0, [0])
    spoil_stream(world, job_id)
    assert (world.append(claim, 1, [1]).state, world.append(claim, 0, [0, 1]).state) == ("rewind", "ok")
    assert [token for event in world.stream(job_id) for token in event.token_ids] == [0, 1]


@pytest.mark.parametrize("had_ended", [False, True])
def test_a_job_whose_hash_was_deleted_runs_again_once_it_was_submitted_again(world: Any, had_ended: bool) -> None:
    """Its stream is still there. All hashes deleted are no three crashes of an engine."""
    calls = [world.enqueue_call() for _ in range(3)]
    for call in calls:
        world.run(call)
    for claim in world.claim(max_jobs=3).jobs:
        world.append(claim, 0, [1, 2, 3])
        if had_ended:
            world.finish(claim, tokens=3)
    world.redis.delete(*world.redis.keys("{c00}:j:*"))
    for call in calls:
        world.run(world.cell.enqueue_again(call))
    claims = world.claim(max_jobs=3).jobs
    for claim in claims:
        assert world.append(claim, 0, [1]).state == "ok"
        assert world.append(claim, 1, [2, 3]).state == "ok"
        assert world.finish(claim, tokens=3)
        assert [event.token_ids for event in world.stream(claim.job_id)] == [(1,), (2, 3), ()]
        assert world.state(claim.job_id)["st"] == "completed"
    assert len(claims) == 3
    assert world.redis.xlen("{c00}:dlq") == 0
    assert world.counters() == {}


@pytest.mark.parametrize("count", ["1", "0"])
def test_a_count_of_tokens_that_something_else_has_changed_is_no_crash(world: Any, count: str) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    world.append(claim, 0, [1, 2, 3])
    world.redis.hset(world.keys.job(job_id), "n", count)
    reply = world.append(claim, int(count), [2])
    assert (reply.state, reply.offset) == ("rewind", 0) if count != "0" else ("ok", 1)
    start = reply.offset
    assert world.append(claim, start, [1, 2, 3][start:]).state == "ok"
    assert world.finish(claim, tokens=3)
    assert world.redis.exists(f"{{c00}}:aside:t:{job_id}")


def test_what_a_server_takes_nothing_of_is_damaged_and_not_given_up_for_crashes(world: Any) -> None:
    job_id, other = world.enqueue(), world.enqueue()
    claims = world.claim(max_jobs=2).jobs
    by_id = {claim.job_id: claim for claim in claims}
    assert world.run(world.cell.release([(job_id, by_id[job_id].token)], why="refused")) == 1
    assert world.status(job_id) == "failed"
    (end,) = world.stream(job_id)
    assert end.end.error.code == "job_damaged"
    assert [fields[b"why"] for _, fields in world.redis.xrange("{c00}:dlq")] == [b"job_damaged"]
    assert world.status(other) == "running"
