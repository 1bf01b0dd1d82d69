"""Settling: every way in which a job can end gives back, once, what the job was charged and has not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.queue import wire
from octavo.queue.tenants.limits import Scope
from octavo.terms.messages import JobStatus, Terminal, Usage


def slowly(limit: int) -> dict[str, int]:
    """A bucket of a day that holds `limit` and refills with less than a token in a test."""
    return {"tokens_per_day": 1, "tokens_per_day_capacity": limit}


def end_by_finish(world: Any, job_id: str) -> int:
    claim = world.claim_one()
    world.append(claim, 0, [1, 2])
    assert world.finish(claim, tokens=2)
    assert world.finish(claim, tokens=2)  # repeated
    return 3 + 2


def end_by_cancel(world: Any, job_id: str) -> int:
    for _ in range(2):
        world.run(world.cell.cancel(job_id))
    return 0


def end_by_erase(world: Any, job_id: str) -> int:
    for _ in range(2):
        world.run(world.cell.erase(job_id))
    return 0


def end_by_start_limit(world: Any, job_id: str) -> int:
    world.pass_limit(job_id, "qdl")
    world.reap()
    return 0


def end_while_claimed(world: Any, job_id: str) -> int:
    world.redis.hset(world.keys.job(job_id), "qdl", 1)
    assert world.claim().jobs == ()
    return 0


def used_without_owner(world: Any, job_id: str, tokens: int) -> int:
    return int(world.state(job_id)["est"]) + tokens


def end_by_deadline(world: Any, job_id: str) -> int:
    world.append(world.claim_one(), 0, [1, 2, 3])
    for _ in range(2):  # a mark, then the end
        world.pass_limit(job_id, "dl")
        world.reap()
    return used_without_owner(world, job_id, 3)


def end_of_a_cancelled_job_given_back(world: Any, job_id: str) -> int:
    claim = world.claim_one()
    world.run(world.cell.cancel(job_id))
    world.run(world.cell.release([(job_id, claim.token)]))
    return used_without_owner(world, job_id, 0)


def end_as_a_dead_letter(world: Any, job_id: str) -> int:
    for _ in range(3):
        world.crash(job_id)
    assert world.state(job_id)["st"] == "failed"
    return used_without_owner(world, job_id, 0)


def end_after_takeover(world: Any, job_id: str) -> int:
    first = world.claim_one()
    world.append(first, 0, [1])
    world.lapse(job_id)
    world.reap()
    second = world.claim_one(worker="w2")
    world.append(second, 1, [2, 3])
    assert not world.finish(first, tokens=1)
    assert world.finish(second, tokens=3)
    return 3 + 3


def end_by_damage(world: Any, job_id: str) -> int:
    claim = world.claim_one()
    world.append(claim, 0, [1])
    world.redis.hset(world.keys.job(job_id), "ret", "rubbish")
    for _ in range(2):
        world.run(world.cell.release([(job_id, claim.token)]))
    return int(world.redis.hget(f"{world.keys.prefix}:aside:j:{job_id}", "est")) + 1


def end_told_again(world: Any, job_id: str) -> int:
    claim = world.claim_one()
    world.append(claim, 0, [1])
    world.lapse(job_id)
    world.reap()  # it is another's by now
    terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(prompt_tokens=4, completion_tokens=2))
    call = world.cell.finish(job_id, claim.token, terminal, wire.encode_result(terminal, []))
    for _ in range(2):
        assert world.run(world.cell.end_again(call))
    return 4 + 2


ENDS: list[Callable[[Any, str], int]] = [
    *(end_by_finish, end_by_cancel, end_by_erase, end_by_start_limit, end_while_claimed, end_by_deadline),
    *(end_of_a_cancelled_job_given_back, end_as_a_dead_letter, end_after_takeover, end_by_damage, end_told_again),
]


@pytest.mark.parametrize("end", ENDS)
def test_every_end_gives_back_once_what_was_not_used(world: Any, request_of: Any, end: Any) -> None:
    for scope in (Scope(), Scope("model", "toy"), Scope("key", "k1")):
        world.limit(scope=scope, **slowly(1000), requests_per_minute=6)
    job_id = world.enqueue(request_of(timeout_s=600.0, queue_timeout_s=600.0), key_id="k1")
    used = end(world, job_id)
    for field in ("*", "m toy", "k k1"):
        assert world.level(f"{field} tokens_per_day") == pytest.approx(1000 - used, abs=0.01)
        assert world.level(f"{field} requests_per_minute") == 5
    assert "chg" not in world.state(job_id)
