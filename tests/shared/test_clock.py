"""The server's clock is set back: what was to happen in some seconds does, and nothing that lives is taken for dead."""

from __future__ import annotations

from typing import Any

import pytest

HOUR_MS = 3_600_000
CELL = "{c00}"


def set_back(world: Any, by_ms: int) -> None:
    """As if the clock had just been set back: all times that were written lie so much later."""
    world.redis.hincrby(f"{CELL}:reaper", "at", by_ms)
    world.redis.hincrby(f"{CELL}:reaper", "grace", by_ms)
    for name in (f"{CELL}:L", f"{CELL}:workers", *world.redis.scan_iter(f"{CELL}:b:solo*")):
        for member in world.redis.zrange(name, 0, -1):
            world.redis.zincrby(name, by_ms, member)
    for name in (*world.redis.scan_iter(f"{CELL}:W:*"), *world.redis.scan_iter(f"{CELL}:blocked:*")):
        world.redis.pexpire(name, world.redis.pttl(name) + by_ms)


def now_ms(world: Any) -> int:
    seconds, micros = world.redis.time()
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.parametrize("by_ms", [20_000, HOUR_MS])
def test_a_dead_owner_is_noticed_after_its_lease_and_a_live_one_is_not_disturbed(world: Any, by_ms: int) -> None:
    """One of two jobs is renewed after the clock was set back, before the reaper has seen that."""
    for _ in range(2):
        world.enqueue()
    dead, alive = world.claim(max_jobs=2, lease_ms=15_000).jobs
    world.reap()
    set_back(world, by_ms)
    world.run(world.cell.heartbeat("w1", [(alive.job_id, alive.token)], lease_ms=15_000, info=b"i"))
    assert world.reap() == 0
    left = {claim.job_id: world.redis.zscore(f"{CELL}:L", claim.job_id) - now_ms(world) for claim in (dead, alive)}
    assert left[dead.job_id] <= 15_000
    assert left[alive.job_id] <= 15_000
    assert world.status(alive.job_id) == "running"
    world.redis.zincrby(f"{CELL}:L", -15_001, dead.job_id)  # so much later
    assert world.reap() == 1
    assert (world.status(dead.job_id), world.status(alive.job_id)) == ("queued", "running")


def test_a_long_lease_that_was_renewed_since_is_whole(world: Any) -> None:
    """A clock that lost less than a lease is not to cost an owner its lease."""
    world.enqueue()
    (claim,) = world.claim(lease_ms=120_000).jobs
    world.reap()
    set_back(world, 100_000)
    world.run(world.cell.heartbeat("w1", [(claim.job_id, claim.token)], lease_ms=120_000, info=b"i"))
    world.reap()
    assert world.redis.zscore(f"{CELL}:L", claim.job_id) - now_ms(world) > 100_000


def test_a_lease_of_a_worker_of_before_does_not_last_for_hours(world: Any) -> None:
    world.enqueue()
    (claim,) = world.claim(lease_ms=4000).jobs
    world.redis.hdel(world.keys.job(claim.job_id), "ls")
    world.reap()
    set_back(world, HOUR_MS)
    world.reap()
    assert world.redis.zscore(f"{CELL}:L", claim.job_id) - now_ms(world) <= 4000


@pytest.mark.parametrize("digest", ["", "d1"])
def test_a_suspect_waits_no_longer_than_it_would_have(world: Any, digest: str) -> None:
    job_id = world.enqueue()
    for number in range(2):
        claim = world.claim_one(digest=digest)
        if number == 0 and digest:
            world.append(claim, 0, [1])
        world.run(world.cell.release([(job_id, claim.token)], why="killed"))
    assert world.claim(digest=digest).jobs == ()
    world.reap()
    set_back(world, HOUR_MS)
    world.reap()
    (lane,) = world.redis.scan_iter(f"{CELL}:b:solo*")
    assert lane.decode().startswith(f"{CELL}:b:solo:=d1:" if digest else f"{CELL}:b:solo:toy")
    assert world.redis.zscore(lane, job_id) - now_ms(world) <= 30_000
    world.redis.zincrby(lane, -30_001, job_id)
    assert [claim.job_id for claim in world.claim(digest=digest).jobs] == [job_id]


def test_a_worker_that_died_is_not_shown_for_hours(world: Any) -> None:
    world.run(world.cell.heartbeat("dead", [], lease_ms=60_000, info=b"i"))
    world.reap()
    set_back(world, HOUR_MS)
    world.run(world.cell.heartbeat("alive", [], lease_ms=60_000, info=b"i"))
    world.reap()
    assert world.redis.zscore(f"{CELL}:workers", "dead") <= now_ms(world)
    # The mended expiry is in whole seconds, rounded up.
    assert 0 < world.redis.pttl(f"{CELL}:W:dead") <= 181_000
    assert 100_000 < world.redis.pttl(f"{CELL}:W:alive") <= 180_000


def test_work_that_fitted_no_claim_rings_the_bell_again(world: Any) -> None:
    world.enqueue()
    world.enqueue()
    assert world.claim(max_tokens=1, idle=False).jobs == ()
    world.reap()
    set_back(world, HOUR_MS)
    world.redis.delete(world.keys.bell("toy"))
    world.reap()
    assert world.claim(max_tokens=1, idle=False).jobs == ()
    assert world.redis.llen(world.keys.bell("toy")) == 1


def test_damage_is_mended_although_it_was_in_an_hour(world: Any) -> None:
    assert world.run(world.cell._call("mend", parse=bool))
    assert not world.run(world.cell._call("mend", parse=bool))
    world.redis.pexpire(f"{CELL}:mended", HOUR_MS)
    assert world.run(world.cell._call("mend", parse=bool))


def test_nothing_changes_while_the_clock_goes_on(world: Any) -> None:
    world.enqueue()
    (claim,) = world.claim(lease_ms=300_000).jobs
    lease = world.redis.zscore(f"{CELL}:L", claim.job_id)
    world.redis.hset(f"{CELL}:reaper", "at", now_ms(world) + 500)  # clocks are slewed
    world.reap()
    world.reap()
    assert world.redis.zscore(f"{CELL}:L", claim.job_id) == lease
