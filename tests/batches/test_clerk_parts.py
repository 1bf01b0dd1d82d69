"""Parts of the clerk: lines by place, the window, the pace, a batch that changes meanwhile, results of any size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from batch_bench import BATCHES, CELL, KEYS, LEASE_MS, Bench
from clerks import encoded, line, working
from waiting import STALL_S, until

from octavo.client.batches import BatchClient
from octavo.dialects.ignored import Ignored
from octavo.dialects.openai.batch.requests import line_request
from octavo.queue import wire
from octavo.queue.protocol import Append
from octavo.service.clerk.desk import Desk, Lost, window_for
from octavo.service.clerk.harvest import Harvest, _undone
from octavo.service.clerk.input_file import GROUP_LINES, InputFile
from octavo.service.clerk.pace import Pace
from octavo.service.clerk.results import Outcome, read_outcomes
from octavo.service.clerk.submission import Line, Submission
from octavo.service.clerk.work import Work
from octavo.service.storage import open_storage
from octavo.service.storage.interface import in_pieces, whole
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.stats import WorkerStats
from octavo.terms.workers import WorkerInfo


def worker_of(model: str, max_running: int) -> WorkerInfo:
    return WorkerInfo(
        id=model, model=model, host="h", pid=1, started_at=0.0, stats=WorkerStats(max_running=max_running)
    )


def test_the_window_is_four_times_what_live_workers_run() -> None:
    workers = [worker_of("a", 100), worker_of("a", 50), worker_of("b", 9000)]
    assert [window_for(workers, model) for model in ("a", "b", "c")] == [600, 10_000, 256]


def test_a_batch_is_late_by_its_rate_and_not_before_there_is_one() -> None:
    pace = Pace(0.0)
    pace.note(30.0, 10)
    assert not pace.would_miss(30.0, 10_000, 40.0)
    pace.note(100.0, 90)  # one a second
    assert not pace.would_miss(100.0, 100, 201.0)
    assert pace.would_miss(100.0, 100, 199.0)
    assert not pace.would_miss(100.0, 0, 100.0)
    idle = Pace(0.0)
    assert idle.would_miss(61.0, 1, 1e9)


@pytest.fixture
async def desk(redis_url: str, tmp_path: Path) -> AsyncIterator[Desk]:
    async with BatchClient(redis_url) as client:
        yield Desk(client, open_storage(str(tmp_path)))


async def test_lines_are_found_by_place_and_grouped_by_size(desk: Desk) -> None:
    small = [line(f"{number}", model="m") for number in range(100)]
    large = [line(f"large {number}", "x" * 900_000, model="m") for number in range(6)]
    data = b"\n" + encoded(*small) + b" \r\n" + encoded(*large)
    await desk.storage.put("files/a", in_pieces(data))
    source, check = await InputFile.read(desk.storage, "files/a", "/v1/completions")
    assert (check.total, check.errors) == (106, [])
    assert source.group(0, 106) == range(GROUP_LINES)
    assert source.group(100, 106) == range(100, 104)
    found = await source.lines([105, 0, 99, 100])
    assert list(found) == [0, 99, 100, 105]
    assert [found[0], found[105]] == [encoded(small[0]).strip(), encoded(large[5]).strip()]


@pytest.fixture
async def submission(desk: Desk, redis_url: str) -> tuple[Bench, Submission, Submission]:
    """The submissions of a batch's owner and of a former one."""
    bench = Bench(redis_url)
    await desk.storage.put("files/a", in_pieces(encoded(*(line(f"{number}", model="m") for number in range(7)))))
    source, _ = await InputFile.read(desk.storage, "files/a", "/v1/completions")
    bench.run(BATCHES.claim("c", "t", lease_ms=LEASE_MS))
    bench.run(BATCHES.begin(bench.batch, "t", total=7, model="m"))
    batch = await desk.client.batch(bench.batch)
    assert batch is not None
    return bench, Submission(desk, batch, "t", source), Submission(desk, batch, "former", source)


async def test_a_cancel_amid_submission_is_no_loss_of_the_batch(submission: Any) -> None:
    """Its owner goes on with its end at once, and does not wait for its own lease."""
    bench, own, _ = submission
    bench.run(BATCHES.cancel(bench.batch))
    assert await own.submit(0, 100, "batch") == 0
    assert bench.redis.zcard(f"{{c00}}:bto:{bench.batch}") == 0


async def test_a_former_owner_learns_that_it_is_none(submission: Any) -> None:
    _, own, former = submission
    with pytest.raises(Lost):
        await former.submit(0, 100, "batch")
    assert await own.submit(0, 3, "batch") == 7
    with pytest.raises(Lost):
        await former.submit(0, 100, "batch")


async def test_jobs_have_the_class_and_a_seed_that_follows_from_the_line(submission: Any) -> None:
    bench, own, _ = submission
    await own.submit(0, 100, "normal")
    jobs = bench.run(CELL.claim("m", "w", max_jobs=9, max_tokens=1 << 20, lease_ms=LEASE_MS, idle=True)).jobs
    assert {job.priority for job in jobs} == {"normal"}
    assert len({job.seed for job in jobs}) == 7
    assert all(0 < job.request.timeout_s <= 86_400 for job in jobs)


@pytest.mark.parametrize("kept", ["result", "stream alone", "nothing"])
async def test_a_result_is_read_wherever_it_is(submission: Any, desk: Desk, kept: str) -> None:
    bench, own, _ = submission
    await own.submit(0, 100, "batch")
    (claim,) = bench.run(CELL.claim("m", "w", max_jobs=1, max_tokens=1 << 20, lease_ms=LEASE_MS, idle=True)).jobs
    chunk = Chunk(token_ids=(1, 2), texts=("a", "b"), finish_reason="stop")
    bench.run(CELL.append([Append(claim.job_id, claim.token, 0, chunk)]))
    terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(3, 2))
    result = b"" if kept == "stream alone" else wire.encode_result(terminal, [chunk])
    bench.run(CELL.finish(claim.job_id, claim.token, terminal, result))
    if kept == "nothing":
        bench.redis.delete(KEYS.result(claim.job_id), KEYS.stream(claim.job_id))
    outcome = (await read_outcomes(desk.client, [claim.job_id]))[claim.job_id]
    if kept == "nothing":
        assert outcome.error is not None
        assert outcome.error.code == "job_lost"
    else:
        assert outcome.completed is not None
        assert "".join(piece.text for piece in outcome.completed.chunks) == "ab"
        assert outcome.completed.end.usage == Usage(3, 2)


@pytest.mark.parametrize(
    ("fields", "status", "batch_is", "expected"),
    [
        ({}, JobStatus.EXPIRED, None, "expired"),  # the server's clock was ahead of the clerk's
        ({"timeout_s": 1.0}, JobStatus.EXPIRED, None, None),
        ({"queue_timeout_s": 1.0}, JobStatus.EXPIRED, None, None),
        ({"timeout_s": 1.0}, JobStatus.EXPIRED, "expired", "expired"),
        ({}, JobStatus.CANCELLED, None, None),  # by its tenant, as a single job
        ({}, JobStatus.CANCELLED, "cancelled", "cancelled"),
        ({}, JobStatus.FAILED, "cancelled", None),
        ({}, JobStatus.CANCELLED, "expired", None),
    ],
)
def test_a_line_is_undone_where_the_batch_is_why(
    fields: dict[str, Any], status: JobStatus, batch_is: str | None, expected: str | None
) -> None:
    body = {"model": "m", "prompt": "x", **fields}
    asked = Line("a", line_request("/v1/completions", body, {}, Ignored()))
    assert _undone(asked, [Outcome(status=JobStatus.COMPLETED), Outcome(status=status)], batch_is) == expected


async def test_members_that_something_else_moved_are_put_back_and_the_batch_ends(
    submission: Any, desk: Desk, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.service.clerk.work._RECHECK_S", 0.1)
    bench, own, _ = submission
    await own.submit(0, 100, "batch")
    for _ in range(7):
        bench.end_one()
    ended = f"{{c00}}:bte:{bench.batch}"
    member = bench.redis.zrange(ended, 0, 0)[0]
    bench.redis.zadd(ended, {member: 1e12, b"somebody else's": 3})
    await desk.storage.put(f"files/{bench.file}", in_pieces(await whole(desk.storage.read("files/a"))))
    async with asyncio.timeout(STALL_S):
        await Work(desk, bench.batch, "t").run()
    assert (bench.field("st"), bench.field("done")) == ("completed", "7")


async def test_a_line_of_several_jobs_waits_for_all_of_them_at_any_owner(desk: Desk, redis_url: str) -> None:
    bench = Bench(redis_url)
    await desk.storage.put("files/a", in_pieces(encoded(line("a", model="m", prompt=["x", "y"]))))
    source, _ = await InputFile.read(desk.storage, "files/a", "/v1/completions")
    bench.run(BATCHES.claim("c", "t", lease_ms=LEASE_MS))
    bench.run(BATCHES.begin(bench.batch, "t", total=1, model="m"))
    batch = await desk.client.batch(bench.batch)
    assert batch is not None
    assert await Submission(desk, batch, "t", source).submit(0, 9, "batch") == 1
    for ended in (0, 1):
        bench.end_one()
        harvest = Harvest(desk, batch, "t", source, Submission(desk, batch, "t", source))
        assert await harvest.harvest(1, 0, None) == ended


async def test_a_clerk_that_ends_gives_its_batches_back_at_once(redis_url: str, tmp_path: Path) -> None:
    bench = Bench(redis_url)
    await open_storage(str(tmp_path)).put(f"files/{bench.file}", in_pieces(encoded(line("a", model="m"))))
    async with working(redis_url, tmp_path):
        await until(lambda: bench.field("st") == "in_progress")
        assert bench.redis.zcard("{c00}:btL") == 1
    assert bench.redis.zcard("{c00}:btL") == 0
    assert bench.redis.zrange("{c00}:bts", 0, -1) == [bench.batch.encode()]
