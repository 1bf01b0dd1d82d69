"""The account of usage: every job that ends is in it once, at every width, whatever was folded."""

from __future__ import annotations

import math
import struct
import time
from typing import Any

import pytest

from octavo.queue import wire
from octavo.queue.calls import Call
from octavo.queue.protocol import LineOfBatch
from octavo.queue.scripts import script
from octavo.queue.tenants.usage import DAY_S, HOUR_S, Row, Sums, UsageCell, grouped
from octavo.terms.messages import JobStatus, Terminal, Usage

CELL = UsageCell()


def rows(world: Any, tenant: str = "acme", *, days: int = 500) -> list[Row]:
    now = time.time()
    return world.run(CELL.read(tenant, now - days * DAY_S, now + DAY_S))


def total(world: Any, tenant: str = "acme") -> Sums:
    return grouped(rows(world, tenant), lambda row: row.tenant).get(tenant, Sums())


def finish(world: Any, status: JobStatus = JobStatus.COMPLETED, **counts: int) -> None:
    claim = world.claim_one()
    tokens = counts.setdefault("completion_tokens", 2)
    world.append(claim, 0, range(tokens))
    terminal = Terminal(status=status, usage=Usage(**counts))
    for _ in range(2):
        assert world.run(world.cell.finish(claim.job_id, claim.token, terminal, wire.encode_result(terminal, [])))


def test_a_job_counts_once_as_its_owner_tells(world: Any) -> None:
    before = int(time.time()) // 60 * 60
    world.enqueue(key_id="k1")
    finish(world, prompt_tokens=7, completion_tokens=5, cached_tokens=4, drafted_tokens=3)
    (row,) = rows(world)
    assert before <= row.start <= time.time()
    assert (row.tenant, row.api_key, row.model, row.of_batches) == ("acme", "k1", "toy", False)
    told = row.sums
    assert (told.input_tokens, told.cached_tokens, told.output_tokens, told.drafted_tokens) == (7, 4, 5, 3)
    assert (told.requests, told.failures) == (1, 0)
    assert rows(world, "other") == []


def test_rows_are_of_one_key_and_one_model_and_batches_are_apart(world: Any, request_of: Any) -> None:
    world.know("big")
    world.redis.hset("{c00}:bt:b1", mapping={"tok": "t", "st": "in_progress", "cur": 0, "tn": "acme"})
    ids = [
        world.enqueue(key_id="k1"),
        world.enqueue(key_id="k2"),
        world.enqueue(),
        world.enqueue(request_of(model="big")),
        world.enqueue(line=LineOfBatch("b1", "t", 0, 0)),
    ]
    for job_id in ids:
        world.run(world.cell.cancel(job_id))
    found = {(row.api_key, row.model, row.of_batches): row.sums.requests for row in rows(world)}
    assert found == {
        **dict.fromkeys([("k1", "toy", False), ("k2", "toy", False), ("", "toy", False)], 1),
        **dict.fromkeys([("", "big", False), ("", "toy", True)], 1),
    }


def test_a_job_without_an_owner_counts_what_is_stored_of_it(world: Any, request_of: Any) -> None:
    job_id = world.enqueue(request_of(timeout_s=600.0))
    world.append(world.claim_one(), 0, [1, 2, 3])
    for _ in range(2):
        world.pass_limit(job_id, "dl")
        world.reap()
    assert (total(world).output_tokens, total(world).requests, total(world).failures) == (3, 1, 1)


def test_failures_are_jobs_that_failed_or_expired(world: Any, request_of: Any) -> None:
    world.enqueue()
    finish(world, JobStatus.FAILED)
    world.run(world.cell.cancel(world.enqueue()))
    world.pass_limit(world.enqueue(request_of(queue_timeout_s=60.0)), "qdl")
    world.reap()
    dead = world.enqueue()
    for _ in range(3):
        world.crash(dead)
    assert (total(world).requests, total(world).failures) == (4, 3)


def test_a_damaged_job_counts_once(world: Any) -> None:
    job_id = world.enqueue()
    world.append(world.claim_one(), 0, [1, 2])
    world.redis.hset(world.keys.job(job_id), "ret", "rubbish")
    for _ in range(2):
        world.lapse(job_id)
        world.reap()
    assert (total(world).requests, total(world).failures, total(world).output_tokens) == (1, 1, 2)


def test_seconds_are_from_acceptance_to_the_first_claim_and_from_there_to_the_end(world: Any) -> None:
    job_id = world.enqueue()
    claim = world.claim_one()
    accepted = int(world.state(job_id)["ct"])
    world.redis.hset(world.keys.job(job_id), mapping={"ct": accepted - 9000, "sts": accepted - 4000})
    world.finish(claim, tokens=0)
    assert total(world).waited_ms == 5000
    assert total(world).computed_ms >= 4000
    other = world.enqueue(tenant="other")
    world.redis.hset(world.keys.job(other), "ct", int(world.state(other)["ct"]) - 7000)
    world.run(world.cell.cancel(other))
    assert total(world, "other").waited_ms >= 7000
    assert total(world, "other").computed_ms == 0


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x93\x01\xa3use\xa1x", wire.encode_usage(Usage())[:-1]])
def test_usage_that_cannot_be_read_is_none(world: Any, frame: bytes) -> None:
    world.enqueue()
    claim = world.claim_one()
    terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage())
    call = world.cell.finish(claim.job_id, claim.token, terminal, b"")
    args = (world.keys.prefix, *call.args[:-1], frame)
    assert world.redis.eval(script("finish").source, 1, *args)[0] == b"ok"
    assert (total(world).requests, total(world).output_tokens) == (1, 0)


def age(world: Any, hours: int, tenant: str = "acme") -> None:
    """As if all that was counted in this hour had been counted so many hours ago."""
    keys = [name.decode() for name in world.redis.scan_iter("{c00}:use:*") if name.decode().endswith(f":{tenant}")]
    for name in keys:
        hour = int(name.split(":")[2])
        world.redis.rename(name, f"{{c00}}:use:{hour - hours}:{tenant}")
        world.redis.zrem("{c00}:fold", f"m {hour} {tenant}")
        world.redis.zadd("{c00}:fold", {f"m {hour - hours} {tenant}": (hour - hours + 3) * 3_600_000})


def fold(world: Any) -> int:
    calls = 0
    while world.run(CELL.fold()):
        calls += 1
    return calls


@pytest.mark.parametrize(("hours", "width", "kind"), [(1, 60, "use"), (30, HOUR_S, "useh"), (24 * 12, DAY_S, "used")])
def test_what_is_folded_keeps_its_sums_at_a_greater_width(world: Any, hours: int, width: int, kind: str) -> None:
    for number in range(3):
        world.enqueue(key_id=f"k{number % 2}")
        finish(world, prompt_tokens=number + 1)
    before = {(row.api_key, row.model): row.sums for row in rows(world)}
    (start,) = {row.start for row in rows(world)}
    age(world, hours)
    fold(world)
    after = rows(world)
    assert {(row.api_key, row.model): row.sums for row in after} == before
    assert {row.start for row in after} == {(start - hours * HOUR_S) // width * width}
    names = {name.decode().split(":")[1] for name in world.redis.scan_iter("{c00}:use*:*:acme")}
    assert names == {kind}
    assert fold(world) == 0


def test_an_hour_that_is_folded_in_parts_counts_once_at_any_time(world: Any) -> None:
    world.redis.delete("{c00}:usage", "{c00}:fold")
    hour = int(time.time()) // 3600 - 30
    fields = {
        f"{minute} 0 k{key} toy": struct.pack("<8d", 1, 0, 2, 0, 1, 0, 0, 0)
        for minute in range(60)
        for key in range(40)
    }
    world.redis.hset(f"{{c00}}:use:{hour}:acme", mapping=fields | {"rubbish": "x", "5 0 k1 toy": "rubbish"})
    world.redis.zadd("{c00}:fold", {f"m {hour} acme": (hour + 3) * 3_600_000, "rubbish": 1})
    world.redis.zadd("{c00}:usage", {"acme": hour})
    calls = 0
    assert total(world).requests == 60 * 40 - 1
    while world.run(CELL.fold()):
        calls += 1
        assert total(world).requests == 60 * 40 - 1
    assert calls > 2
    assert len(rows(world)) == 40


def test_a_late_job_of_a_folded_hour_is_folded_too(world: Any) -> None:
    for _ in range(2):
        world.enqueue()
        finish(world)
        age(world, 30)
        fold(world)
    (row,) = rows(world)
    assert row.sums.requests == 2


def test_an_account_without_its_list_is_listed_again_by_mend(world: Any) -> None:
    world.enqueue()
    finish(world)
    age(world, 30)
    world.redis.delete("{c00}:fold", "{c00}:usage")
    world.redis.set("{c00}:useh:7:acme", "somebody else's")
    world.redis.hset("{c00}:use:rubbish", "a", "b")
    world.run(Call("mend", (world.keys.prefix,), (), bool))
    fold(world)
    assert total(world).requests == 1
    assert world.redis.zscore("{c00}:usage", "acme")


def test_what_something_else_wrote_into_the_account_counts_as_nothing(world: Any) -> None:
    world.enqueue()
    finish(world)
    (name,) = list(world.redis.scan_iter("{c00}:use:*"))
    (field,) = world.redis.hkeys(name)
    for rubbish in (b"", b"x", b"9" * 63, struct.pack("<8d", *[math.nan] * 8), struct.pack("<8d", *[-1.0] * 8)):
        world.redis.hset(name, field, rubbish)
        world.enqueue()
        finish(world)
        assert total(world).requests == 1
