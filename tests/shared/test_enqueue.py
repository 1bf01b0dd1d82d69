"""`enqueue`: what is accepted, what is refused without a trace, and what a repeat changes."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError

from octavo.terms.errors import IdempotencyConflict, InvalidRequest, QueueFull, UnknownModel
from octavo.terms.limits import Limits


def test_an_accepted_job_is_queued_with_its_seed_and_rings_the_bell(world: Any, request_of: Any) -> None:
    job_id = world.enqueue(request_of(metadata={"a": "b"}, priority="high"))
    assert world.status(job_id) == "queued"
    assert world.redis.llen(world.keys.bell("toy")) == 1
    world.enqueue()
    assert world.redis.llen(world.keys.bell("toy")) == 1
    claim = world.claim_one()
    assert claim.job_id == job_id
    assert claim.seed == (1 << 63) - 1
    assert claim.request == request_of(metadata={"a": "b"}, priority="high")
    assert (claim.priority, claim.tenant, claim.attempt, claim.offset, claim.solo) == ("high", "acme", 1, 0, False)


def test_enqueue_repeated_changes_nothing(world: Any) -> None:
    call = world.enqueue_call(key="k")
    first = world.run(call)
    before = world.counters()
    assert world.run(call) == first
    assert world.counters() == before
    assert len(world.claim(max_jobs=5).jobs) == 1
    assert world.run(call) == first
    assert world.claim(max_jobs=5).jobs == ()


def test_an_idempotency_key_names_one_job_of_one_tenant(world: Any, request_of: Any) -> None:
    first = world.run(world.enqueue_call(key="k"))
    again = world.run(world.enqueue_call(key="k"))
    assert first.created
    assert not again.created
    assert again.job_id == first.job_id
    assert world.run(world.enqueue_call(key="k", tenant="other")).created
    with pytest.raises(IdempotencyConflict, match=first.job_id):
        world.enqueue(request_of("another prompt"), key="k")
    assert world.counters()["queued"] == 2


def test_an_unknown_model_is_refused_and_the_known_ones_are_named(world: Any, request_of: Any) -> None:
    with pytest.raises(UnknownModel, match="toy"):
        world.enqueue(request_of(model="nope"))
    assert world.counters() == {}


def test_caps_refuse_without_a_trace(world: Any, request_of: Any) -> None:
    world.enqueue()
    size = world.counters()["bytes"]
    before = set(world.redis.keys())
    for limits in (
        Limits(queued_jobs=1),
        Limits(queued_bytes=2 * size - 1),
    ):
        with pytest.raises(QueueFull):
            world.enqueue(limits=limits)
    assert set(world.redis.keys()) == before
    world.enqueue(limits=Limits(queued_bytes=3 * size))


def test_a_body_over_the_limit_never_leaves_the_client(world: Any, request_of: Any) -> None:
    with pytest.raises(InvalidRequest, match="shorten the prompt"):
        world.enqueue_call(request_of("x" * (1 << 20)))


def test_when_memory_runs_out_enqueue_stops_and_running_jobs_drain(world: Any) -> None:
    world.enqueue()
    claim = world.claim_one()
    world.redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(OutOfMemoryError):
            world.enqueue()
        assert world.append(claim, 0, [1]).state == "ok"
        assert world.finish(claim, tokens=1)
    finally:
        world.redis.config_set("maxmemory", "0")


def test_a_model_can_be_registered_while_memory_is_full(world):
    world.redis.config_set("maxmemory", 1)
    try:
        world.know("toy")
    finally:
        world.redis.config_set("maxmemory", 0)
