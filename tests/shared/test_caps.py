"""Caps of tenants that are no buckets: what waits, what is stored, what a request may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.queue import wire
from octavo.queue.calls import Call
from octavo.queue.tenants.limits import Scope
from octavo.terms.errors import InvalidRequest, QueueFull, TenantSuspended
from octavo.terms.messages import JobStatus, Terminal, Usage


def test_waiting_jobs_of_a_model_and_waiting_bytes_have_caps(world: Any, request_of: Any) -> None:
    world.know("big")
    world.limit(scope=Scope("model", "toy"), waiting=2)
    for priority in ("high", "batch"):
        world.enqueue(request_of(priority=priority))
    with pytest.raises(QueueFull):
        world.enqueue()
    world.enqueue(request_of(model="big"))
    held = int(world.redis.hget(f"{world.keys.prefix}:q:acme", "bytes"))
    world.limit(waiting_bytes=held)
    with pytest.raises(QueueFull, match="bytes"):
        world.enqueue(request_of(model="big"))
    world.enqueue(tenant="other")


def test_waiting_jobs_of_a_key_have_a_cap(world: Any) -> None:
    def waiting() -> int:
        return int(world.redis.hget(f"{world.keys.prefix}:q:acme", "waiting k k1") or 0)

    world.limit(scope=Scope("key", "k1"), waiting=2)
    call = world.enqueue_call(key_id="k1")
    for _ in range(2):
        first = world.run(call).job_id
    world.enqueue(key_id="k2")
    second = world.enqueue(key_id="k1")
    with pytest.raises(QueueFull, match="queued jobs"):
        world.enqueue(key_id="k1")
    world.enqueue(key_id="k2")
    world.run(world.cell.cancel(second))
    claim = world.claim_one()
    assert (claim.job_id, waiting()) == (first, 0)
    world.run(world.cell.release([(first, claim.token)]))
    for _ in range(2):
        world.enqueue(key_id="k1")
    world.redis.hdel(f"{world.keys.prefix}:q:acme", "waiting k k1")
    world.run(Call("mend", (world.keys.prefix,), (), bool))
    assert waiting() == 2
    with pytest.raises(QueueFull):
        world.enqueue(key_id="k1")
    while jobs := world.claim(max_jobs=10).jobs:
        for one in jobs:
            world.finish(one, tokens=0)
    assert not world.redis.exists(f"{world.keys.prefix}:q:acme")


def test_attachments_count_for_as_long_as_they_are_stored(world: Any) -> None:
    def stored() -> int:
        return int(world.redis.hget(f"{world.keys.prefix}:q:acme", "stored") or 0)

    result = len(wire.encode_result(Terminal(status=JobStatus.COMPLETED, usage=Usage(prompt_tokens=3)), []))
    world.limit(stored_bytes=10)
    call = world.enqueue_call(attachment=b"x" * 6)
    for _ in range(2):
        ended = world.run(call).job_id
    with pytest.raises(QueueFull, match="stored"):
        world.enqueue(attachment=b"x" * 5)
    world.enqueue()
    for _ in range(2):
        world.finish(world.claim_one(), tokens=0)
    assert stored() == 6 + result
    world.limit(stored_bytes=10 + result)
    erased = world.enqueue(attachment=b"x" * 4)
    world.run(world.cell.erase(erased))
    assert stored() == 6 + result
    running = world.enqueue(attachment=b"x" * 4)
    claim = world.claim_one()
    world.run(world.cell.erase(running))
    world.finish(claim, tokens=0)
    assert stored() == 6 + result
    world.redis.hset(f"{world.keys.prefix}:q:acme", "stored", 3)
    world.run(Call("mend", (world.keys.prefix,), (), bool))
    assert stored() == 6 + result
    for _ in range(2):
        world.redis.zadd(f"{world.keys.prefix}:x", {f"{ended} acme": 1})
        world.reap()
    assert stored() == 0
    assert not world.redis.exists(f"{world.keys.prefix}:kept:acme")
    damaged = world.enqueue(attachment=b"x" * 9)
    world.redis.hset(world.keys.job(damaged), "ret", "rubbish")
    world.run(world.cell.cancel(damaged))
    assert stored() == 0


def test_a_suspended_tenant_gets_no_new_jobs_in(world: Any) -> None:
    first = world.enqueue()
    world.limit(suspended=1)
    with pytest.raises(TenantSuspended):
        world.enqueue()
    assert world.claim_one().job_id == first
    world.limit(suspended=None)
    world.enqueue()


@pytest.mark.parametrize("scope", [Scope(), Scope("model", "toy"), Scope("key", "k1")])
def test_a_request_asks_for_no_more_tokens_than_it_may(world: Any, request_of: Any, scope: Scope) -> None:
    world.limit(scope=scope, max_tokens=8)
    world.enqueue(request_of(max_tokens=8), key_id="k1")
    for too_many in (9, None):
        with pytest.raises(InvalidRequest, match="8 at most") as refused:
            world.enqueue(request_of(max_tokens=too_many), key_id="k1")
        assert refused.value.code == "too_many_tokens"
    world.know("big")
    if scope.kind == "model":
        world.enqueue(request_of(model="big", max_tokens=9), key_id="k1")
    if scope.kind == "key":
        world.enqueue(request_of(max_tokens=9), key_id="k2")
        world.enqueue(request_of(max_tokens=9))
