"""Limits of tenants: what a job is charged at its acceptance, and what every end of it gives back."""

from __future__ import annotations

import time
from math import inf, nan
from typing import Any

import pytest
from buckets import bucket, level_in, time_in

from octavo.queue.protocol import LineOfBatch
from octavo.queue.tenants.limits import Scope, read_limits
from octavo.terms.errors import (
    IdempotencyConflict,
    InvalidRequest,
    QueueFull,
    RateLimited,
    UnknownModel,
)
from octavo.terms.messages import JobStatus, Terminal, Usage

MINUTE, DAY = "* tokens_per_minute", "* tokens_per_day"
FAR = 10**9


def cost_of(world: Any, job_id: str) -> int:
    return int(world.state(job_id)["cost"])


def slowly(limit: int) -> dict[str, int]:
    """A bucket of a day that holds `limit` and refills with less than a token in a test."""
    return {"tokens_per_day": 1, "tokens_per_day_capacity": limit}


def test_a_limit_holds_from_the_call_that_sets_it(world: Any) -> None:
    world.enqueue()
    assert world.limit(waiting=1) == {"waiting": 1}
    with pytest.raises(QueueFull, match="queued jobs"):
        world.enqueue()
    world.enqueue(tenant="other")
    world.limit(waiting=2)
    world.enqueue()  # jobs of others do not count
    world.limit(waiting=None)
    world.enqueue()


def test_a_tenant_without_limits_may_have_20_000_jobs_waiting(world: Any) -> None:
    world.redis.hset(f"{world.keys.prefix}:q:acme", "queued", 20_000)
    world.redis.zadd(world.keys.jobs, {str(number): 0 for number in range(20_000)})
    with pytest.raises(QueueFull, match="queued jobs"):
        world.enqueue()


def test_a_job_is_charged_for_its_prompt_and_for_all_that_it_may_generate(world: Any, request_of: Any) -> None:
    world.limit(**slowly(10_000), requests_per_minute=60)
    job_id = world.enqueue(request_of("x" * 300, max_tokens=500))
    assert cost_of(world, job_id) == 100 + 16 + 500
    assert world.level(DAY) == pytest.approx(10_000 - 616, abs=0.1)
    world.enqueue(request_of("x" * 300, max_tokens=None))
    assert world.level(DAY) == pytest.approx(10_000 - 616 - 116 - 1024, abs=0.1)


def test_the_answer_says_what_is_left(world: Any) -> None:
    world.limit(requests_per_minute=60, **slowly(1000))
    accepted = world.run(world.enqueue_call())
    cost = cost_of(world, accepted.job_id)
    assert (accepted.rates.requests.limit, accepted.rates.requests.remaining) == (60, 59)
    assert 0 < accepted.rates.requests.reset_s <= 1
    assert (accepted.rates.tokens.limit, accepted.rates.tokens.remaining) == (1000, 1000 - cost)
    assert accepted.rates.tokens.reset_s == pytest.approx(cost * 86_400, rel=0.01)
    assert world.run(world.enqueue_call(tenant="other")).rates is None


def test_a_bucket_without_room_refuses_says_for_how_long_and_keeps_its_level(world: Any) -> None:
    cost = cost_of(world, world.enqueue(tenant="other"))
    world.limit(**slowly(cost * 3 // 2))
    world.enqueue()
    left, before = world.level(DAY), set(world.redis.keys())
    with pytest.raises(RateLimited, match="tokens a day") as refused:
        world.enqueue()
    assert set(world.redis.keys()) == before
    assert world.level(DAY) == pytest.approx(left, abs=0.1)
    error = refused.value
    assert (error.code, error.limit, error.can_retry) == ("rate_limit_exceeded", "tokens_per_day", True)
    assert error.retry_after_s == pytest.approx((cost - left) * 86_400, rel=0.01)
    assert error.rates.tokens.limit == cost * 3 // 2


@pytest.mark.parametrize("limit", [7, 101, 333])
def test_a_retry_at_the_time_that_was_told_is_accepted_and_no_earlier_one(world: Any, limit: int) -> None:
    cost = cost_of(world, world.enqueue(tenant="other"))
    world.limit(tokens_per_day=limit, tokens_per_day_capacity=cost + 1)
    world.enqueue()
    stored = world.redis.hget(world.keys.buckets("acme"), DAY)
    with pytest.raises(RateLimited) as refused:
        world.enqueue()
    wait_ms = round(refused.value.retry_after_s * 1000)
    assert wait_ms > 3_000_000
    world.redis.hset(world.keys.buckets("acme"), DAY, bucket(level_in(stored), time_in(stored) - wait_ms // 2))
    with pytest.raises(RateLimited):
        world.enqueue()
    world.redis.hset(world.keys.buckets("acme"), DAY, bucket(level_in(stored), time_in(stored) - wait_ms))
    world.enqueue()


def test_jobs_that_are_refused_are_told_times_at_which_each_is_accepted(world: Any) -> None:
    """The bucket has room for one more in an hour."""
    cost = cost_of(world, world.enqueue(tenant="other"))
    hour_s = 3600
    world.limit(tokens_per_day=24 * cost, tokens_per_day_capacity=20 * cost)
    world.redis.hset(world.keys.buckets("acme"), DAY, bucket(0, time.time() * 1000))
    waits = []
    for _ in range(5):
        with pytest.raises(RateLimited) as refused:
            world.enqueue()
        waits.append(refused.value.retry_after_s)
    assert waits == pytest.approx([hour_s * number for number in range(1, 6)], abs=60)
    for _ in waits:
        stored = world.redis.hget(world.keys.buckets("acme"), DAY)
        world.redis.hset(world.keys.buckets("acme"), DAY, bucket(level_in(stored), time_in(stored) - hour_s * 1000))
        world.enqueue()
    with pytest.raises(RateLimited):
        world.enqueue()


def test_a_client_that_does_not_wait_keeps_others_waiting_no_longer_than_the_bucket_takes_to_fill(world: Any) -> None:
    cost = cost_of(world, world.enqueue(tenant="other"))
    world.limit(tokens_per_minute=cost, tokens_per_minute_capacity=cost * 2)
    world.redis.hset(world.keys.buckets("acme"), MINUTE, bucket(0, time.time() * 1000))
    waits = []
    for _ in range(10):
        with pytest.raises(RateLimited) as refused:
            world.enqueue()
        waits.append(refused.value.retry_after_s)
    assert waits[1] > waits[0] + 50
    assert max(waits) <= 3 * 60
    world.redis.hset(world.keys.buckets("acme"), MINUTE, bucket(cost, time.time() * 1000))
    world.enqueue()


def test_a_change_of_a_limit_leaves_what_a_bucket_got_until_then(world: Any) -> None:
    cost = cost_of(world, world.enqueue(tenant="other"))
    world.limit(**slowly(1000))
    world.redis.hset(world.keys.buckets("acme"), DAY, bucket(0, time.time() * 1000 - 3_600_000))
    world.limit(tokens_per_day=24_000)
    with pytest.raises(RateLimited):
        world.enqueue()
    assert world.level(DAY) < cost
    world.limit(**slowly(10))
    world.redis.hset(world.keys.buckets("acme"), DAY, bucket(900, time.time() * 1000))
    world.limit(**slowly(1000))
    assert world.level(DAY) == 10


def test_a_request_that_never_fits_is_told_so(world: Any, request_of: Any) -> None:
    world.limit(tokens_per_minute=100)
    with pytest.raises(RateLimited, match="never has more than 100") as refused:
        world.enqueue(request_of(max_tokens=101))
    assert not refused.value.can_retry
    assert refused.value.retry_after_s == inf
    world.limit(requests_per_minute=0)
    with pytest.raises(RateLimited) as refused:
        world.enqueue()
    assert (refused.value.limit, refused.value.can_retry) == ("requests_per_minute", False)


def test_all_scopes_bind_and_the_narrowest_is_named(world: Any) -> None:
    cost = cost_of(world, world.enqueue(tenant="other"))
    scopes = [Scope(), Scope("model", "toy"), Scope("key", "k1")]
    for scope in scopes:
        world.limit(scope=scope, **slowly(2 * cost))
    world.enqueue(key_id="k1")
    for scope in scopes:
        assert world.level(f"{scope.field} tokens_per_day") == pytest.approx(cost, abs=0.01)
    world.enqueue(key_id="k2")
    with pytest.raises(RateLimited, match="the model 'toy'"):
        world.enqueue(key_id="k1")
    world.limit(**slowly(20 * cost))
    world.limit(scope=scopes[1], **slowly(20 * cost))
    world.redis.delete(world.keys.buckets("acme"))
    world.enqueue(key_id="k1")
    world.enqueue(key_id="k1")
    with pytest.raises(RateLimited, match="the key k1"):
        world.enqueue(key_id="k1")
    world.enqueue(key_id="k2")


def test_a_repeat_is_charged_once_a_conflict_and_an_unknown_model_never(world: Any, request_of: Any) -> None:
    world.limit(**slowly(1000), requests_per_minute=6)
    call = world.enqueue_call(key="k")
    world.run(call)
    left = world.level(DAY)
    world.run(call)
    world.run(world.enqueue_call(key="k"))
    with pytest.raises(IdempotencyConflict):
        world.enqueue(request_of("another"), key="k")
    with pytest.raises(UnknownModel):
        world.enqueue(request_of(model="nope"))
    assert world.level(DAY) == left
    assert world.level("* requests_per_minute") == 5


def test_a_job_that_the_server_forgot_is_accepted_again_and_charged(world: Any) -> None:
    call = world.enqueue_call()
    cost = cost_of(world, world.enqueue(tenant="other"))
    world.limit(suspended=1, **slowly(cost // 2))
    accepted = world.run(world.cell.enqueue_again(call))
    assert world.status(accepted.job_id) == "queued"
    assert world.level(DAY) == pytest.approx(cost // 2 - cost, abs=0.01)


def test_a_job_that_used_more_than_it_was_charged_makes_its_tenant_wait(world: Any, request_of: Any) -> None:
    cost = cost_of(world, world.enqueue(tenant="other"))
    world.claim_one()
    world.limit(**slowly(cost))
    world.enqueue()
    claim = world.claim_one()
    world.append(claim, 0, range(30))
    terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(prompt_tokens=50, completion_tokens=30))
    world.run(world.cell.finish(claim.job_id, claim.token, terminal, b""))
    assert world.level(DAY) == pytest.approx(cost - 80, abs=0.01)
    with pytest.raises(RateLimited) as refused:
        world.enqueue()
    assert refused.value.rates.tokens.remaining == 0


def test_a_bucket_never_holds_more_than_its_capacity(world: Any) -> None:
    world.limit(**slowly(1000))
    job_id = world.enqueue()
    world.redis.hset(world.keys.buckets("acme"), DAY, bucket(999, time.time() * 1000))
    world.run(world.cell.cancel(job_id))
    accepted = world.run(world.enqueue_call())
    assert accepted.rates.tokens.remaining == 1000 - cost_of(world, accepted.job_id)
    world.limit(**slowly(10))
    with pytest.raises(RateLimited) as refused:
        world.enqueue()
    assert not refused.value.can_retry


def test_a_bucket_that_is_left_alone_fills_up_and_no_further(world: Any) -> None:
    cost = cost_of(world, world.enqueue(tenant="other"))
    world.limit(tokens_per_minute=600_000, tokens_per_minute_capacity=100)
    world.redis.hset(world.keys.buckets("acme"), MINUTE, bucket(-50, time.time() * 1000 - 3_600_000))
    world.enqueue()
    assert world.level(MINUTE) == 100 - cost


def test_a_limit_that_is_taken_away_takes_its_bucket_with_it(world: Any) -> None:
    world.limit(**slowly(1000), requests_per_minute=5)
    job_id = world.enqueue()
    world.limit(tokens_per_day=None, tokens_per_day_capacity=None)
    assert world.redis.hkeys(world.keys.buckets("acme")) == [b"* requests_per_minute"]
    world.run(world.cell.cancel(job_id))
    assert world.redis.hkeys(world.keys.buckets("acme")) == [b"* requests_per_minute"]
    world.limit(requests_per_minute=None)
    assert not world.redis.exists(world.keys.limits("acme"), world.keys.buckets("acme"))


def test_a_clock_that_is_set_back_freezes_no_bucket(world: Any) -> None:
    cost = cost_of(world, world.enqueue(tenant="other"))
    world.limit(tokens_per_minute=600 * cost, tokens_per_minute_capacity=cost)
    ahead = int(time.time() * 1000) + 3_600_000
    world.redis.hset(world.keys.buckets("acme"), MINUTE, bucket(cost / 2, ahead))
    with pytest.raises(RateLimited):
        world.enqueue()
    assert time_in(world.redis.hget(world.keys.buckets("acme"), MINUTE)) < ahead
    world.redis.hset(world.keys.buckets("acme"), MINUTE, bucket(cost, ahead))
    world.enqueue()
    assert time_in(world.redis.hget(world.keys.buckets("acme"), MINUTE)) < ahead


@pytest.mark.parametrize(
    "rubbish",
    [
        "",
        "text",
        "9 5",
        bucket(nan, 5),
        bucket(inf, 5),
        bucket(-1e18, 5),
        bucket(5, nan),
        bucket(5, -1),
        bucket(5, 5) + b"1",
    ],
)
def test_a_bucket_that_cannot_be_read_is_full(world: Any, rubbish: str | bytes) -> None:
    world.limit(**slowly(1000))
    world.redis.hset(world.keys.buckets("acme"), DAY, rubbish)
    cost = cost_of(world, world.enqueue())
    assert world.level(DAY) == 1000 - cost


def test_lines_of_batches_leave_half_of_a_bucket_to_others_and_have_a_limit_of_their_own(world: Any) -> None:
    batch = {"tok": "t", "st": "in_progress", "cur": 0, "tn": "acme"}
    world.redis.hset(f"{world.keys.prefix}:bt:b1", mapping=batch)

    def line(place: int) -> None:
        world.enqueue(line=LineOfBatch("b1", "t", place, 0))

    cost = cost_of(world, world.enqueue(tenant="other"))
    world.limit(**slowly(4 * cost))
    line(0)
    line(1)
    with pytest.raises(RateLimited) as refused:
        line(2)
    assert refused.value.can_retry
    world.enqueue()
    world.enqueue()
    assert world.level(DAY) == pytest.approx(0, abs=0.01)
    world.limit(tokens_per_day=None, tokens_per_day_capacity=None)
    world.limit(batch_tokens_per_day=1, batch_tokens_per_day_capacity=cost)
    line(3)
    with pytest.raises(RateLimited, match="tokens of batches a day"):
        line(4)
    world.enqueue()


async def test_limits_are_read_as_they_were_set(world: Any, connection: Any) -> None:
    world.limit(waiting=5, weight=2000)
    world.limit(scope=Scope("key", "k1"), requests_per_minute=7)
    world.redis.hset(world.keys.limits("acme"), mapping={"rubbish": "x", "m a": " waiting=x max_tokens=3"})
    assert await read_limits(connection, world.keys, "acme") == {
        Scope(): {"waiting": 5, "weight": 2000},
        Scope("key", "k1"): {"requests_per_minute": 7},
        Scope("model", "a"): {"max_tokens": 3},
    }


@pytest.mark.parametrize(
    ("scope", "values"),
    [
        (Scope(), {"nope": 1}),
        (Scope("key", "k"), {"waiting_bytes": 1}),
        (Scope("model", "m"), {"weight": 1}),
        (Scope(), {"weight": 0}),
        (Scope(), {"running": 0}),
        (Scope(), {"waiting": -1}),
    ],
)
def test_what_is_no_limit_is_refused(world: Any, scope: Scope, values: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        world.limit(scope=scope, **values)
    assert not world.redis.exists(world.keys.limits("acme"))
