"""Attempts at a job: what each transition notes of them, and how it is told."""

from __future__ import annotations

import pytest
import redis
from cli_driver import Cli

from octavo import AsyncClient
from octavo.queue.calls import run_sync
from octavo.queue.keys import Keys
from octavo.queue.overview.attempts import attempts
from octavo.queue.protocol import Append, Cell, Claim, Parting
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.models import JobInfo
from octavo.terms.workers import ModelCard

CELL, KEYS, MODEL = Cell(), Keys(), "toy"


@pytest.fixture
async def client(redis_url: str, redis_sync: redis.Redis):
    card = ModelCard(name=MODEL, max_model_len=4096, vocab_size=256, has_tokenizer=True, created_at=1.0)
    run_sync(redis_sync, CELL.register_model(card))
    async with AsyncClient(redis_url) as made:
        yield made


def claimed(connection: redis.Redis, worker: str, *, lease_ms: int = 60_000) -> Claim:
    call = CELL.claim(MODEL, worker, max_jobs=1, max_tokens=10_000, lease_ms=lease_ms, idle=True)
    (claim,) = run_sync(connection, call).jobs
    assert run_sync(connection, call).jobs == (claim,), "a claim that is repeated is the same attempt"
    return claim


def append(connection: redis.Redis, claim: Claim, start: int, count: int) -> None:
    chunk = Chunk(0, tuple(range(count)), ("x",) * count)
    (reply,) = run_sync(connection, CELL.append([Append(claim.job_id, claim.token, start, chunk)]))
    assert reply.state == "ok"


def finish(connection: redis.Redis, claim: Claim, tokens: int, status: JobStatus = JobStatus.COMPLETED) -> None:
    end = Terminal(status, Usage(completion_tokens=tokens))
    assert run_sync(connection, CELL.finish(claim.job_id, claim.token, end, b"")).state == "ok"


def told(info: JobInfo) -> list[tuple[str | None, int | None, int | None, str | None]]:
    return [(each.worker, each.tokens_before, each.tokens, each.why) for each in info.history]


async def test_a_job_that_three_workers_had_says_so(client: AsyncClient, redis_sync: redis.Redis) -> None:
    job = await client.submit("x", model=MODEL)
    assert (await client.info(job.id)).history == ()
    first = claimed(redis_sync, "one")
    assert told(await client.info(job.id)) == [("one", 0, None, None)]
    assert (await client.info(job.id)).first_token_at is None
    append(redis_sync, first, 0, 3)
    begun = (await client.info(job.id)).first_token_at
    assert begun is not None
    append(redis_sync, first, 3, 1)
    run_sync(redis_sync, CELL.release([(job.id, first.token)], why="back"))
    second = claimed(redis_sync, "two")
    append(redis_sync, second, 4, 2)
    run_sync(redis_sync, CELL.release([(job.id, second.token)], why="killed"))
    third = claimed(redis_sync, "three")
    append(redis_sync, third, 6, 1)
    finish(redis_sync, third, 7)
    info = await client.info(job.id)
    assert told(info) == [("one", 0, 4, "back"), ("two", 4, 6, "killed"), ("three", 6, 7, "completed")]
    assert info.first_token_at == begun
    times = [at for each in info.history for at in (each.started_at, each.ended_at)]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (info.started_at, info.finished_at)


@pytest.mark.parametrize("why", ["back", "crashed", "killed"])
async def test_why_a_worker_gave_it_back(client: AsyncClient, redis_sync: redis.Redis, why: Parting) -> None:
    job = await client.submit("x", model=MODEL)
    claim = claimed(redis_sync, "one")
    for _ in range(2):
        run_sync(redis_sync, CELL.release([(job.id, claim.token)], why=why))
    assert told(await client.info(job.id)) == [("one", 0, 0, why)]


async def test_a_worker_that_went_silent_lost_it(client: AsyncClient, redis_sync: redis.Redis) -> None:
    job = await client.submit("x", model=MODEL)
    claimed(redis_sync, "one")
    redis_sync.zadd(f"{KEYS.prefix}:L", {job.id: 1})
    redis_sync.hset(f"{KEYS.prefix}:reaper", "grace", 0)
    run_sync(redis_sync, CELL.reap())
    if (await client.info(job.id)).status is JobStatus.RUNNING:  # the server had only just been seen
        redis_sync.hset(f"{KEYS.prefix}:reaper", "grace", 0)
        run_sync(redis_sync, CELL.reap())
    assert told(await client.info(job.id)) == [("one", 0, 0, "lapsed")]


async def test_a_job_that_is_given_up_ends_in_its_last_attempt(client: AsyncClient, redis_sync: redis.Redis) -> None:
    job = await client.submit("x", model=MODEL)
    for number in range(3):
        claim = claimed(redis_sync, f"w{number}")
        run_sync(redis_sync, CELL.release([(job.id, claim.token)], why="crashed"))
    info = await client.info(job.id)
    assert info.status is JobStatus.FAILED
    assert [each.why for each in info.history] == ["crashed", "crashed", "failed"]


async def test_a_job_that_ends_in_the_queue_has_no_attempt(client: AsyncClient) -> None:
    job = await client.submit("x", model=MODEL)
    await client.cancel(job.id)
    assert (await client.info(job.id)).history == ()


async def test_the_latest_sixteen_stay(client: AsyncClient, redis_sync: redis.Redis) -> None:
    job = await client.submit("x", model=MODEL)
    for number in range(20):
        claim = claimed(redis_sync, f"w{number}")
        run_sync(redis_sync, CELL.release([(job.id, claim.token)], why="back"))
    history = (await client.info(job.id)).history
    assert [each.worker for each in history] == [f"w{number}" for number in range(4, 20)]
    assert (redis_sync.hget(KEYS.job(job.id), "tries") or b"").count(b" ") == 15


@pytest.mark.parametrize("rubbish", [b"", b"somebody else's", b"\xff;,,", b" " * 40, b"9" * 400, b"1,2,w;3,4,"])
async def test_a_field_that_something_else_spoiled_stops_no_job(
    client: AsyncClient, redis_sync: redis.Redis, rubbish: bytes
) -> None:
    job = await client.submit("x", model=MODEL)
    redis_sync.hset(KEYS.job(job.id), "tries", rubbish)
    assert (await client.info(job.id)).history == ()
    claim = claimed(redis_sync, "one")
    append(redis_sync, claim, 0, 1)
    redis_sync.hset(KEYS.job(job.id), "tries", rubbish)
    finish(redis_sync, claim, 1)
    assert (await client.info(job.id)).status is JobStatus.COMPLETED


def test_what_an_earlier_version_left_out_is_not_known() -> None:
    (only,) = attempts(b";1700000000000,5,completed")
    assert (only.worker, only.started_at, only.tokens, only.why) == (None, None, 5, "completed")


async def test_a_damaged_job_keeps_its_attempts(client: AsyncClient, redis_sync: redis.Redis) -> None:
    job = await client.submit("x", model=MODEL)
    claim = claimed(redis_sync, "one")
    redis_sync.hdel(KEYS.job(job.id), "bytes")
    run_sync(redis_sync, CELL.release([(job.id, claim.token)], why="back"))
    info = await client.info(job.id)
    assert (info.status, info.error and info.error.code) == (JobStatus.FAILED, "job_damaged")
    assert told(info) == [("one", 0, None, None)]


async def test_the_command_shows_them(client: AsyncClient, redis_url: str, redis_sync, tmp_path) -> None:
    job = await client.submit("x", model=MODEL)
    claim = claimed(redis_sync, "one")
    run_sync(redis_sync, CELL.release([(job.id, claim.token)], why="back"))
    finish(redis_sync, claimed(redis_sync, "two"), 0)
    cli = Cli(tmp_path)
    shown = " ".join(cli("jobs", "show", job.id, "--redis-url", redis_url).split())
    assert "one from" in shown
    assert ": back after" in shown
    assert "two from" in shown
    assert ": completed after" in shown
    data = cli.json("jobs", "show", job.id, "--redis-url", redis_url)
    assert [each["why"] for each in data["history"]] == ["back", "completed"]
