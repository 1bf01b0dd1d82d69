"""Tokens that the real server refuses: for ever, or until an operator mends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
from queue_client import MODEL, Queue, known_queue
from waiting import STALL_S

from octavo.queue import calls
from octavo.queue.calls import run_sync
from octavo.queue.connection import connect
from octavo.queue.protocol import Cell
from octavo.service.server import EmbeddedServer
from octavo.terms.messages import JobStatus
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.agent.prompts.answer_form import EncodedPrompt
from octavo_worker.agent.publisher import Publisher
from octavo_worker.contract.messages import TokenOutput


class Desk:
    """A publisher, and the jobs that left it, with the reason."""

    def __init__(self, publisher: Publisher, left: dict[str, str]) -> None:
        self.publisher = publisher
        self.left = left

    def add(self, job: ActiveJob, tokens: list[int], *, last: bool) -> None:
        for place, token in enumerate(tokens):
            ends = "length" if last and place == len(tokens) - 1 else None
            job.accept(TokenOutput(job.request_id, 0, token, finish_reason=ends))
        self.publisher.add(job)

    async def has_left(self, *jobs: ActiveJob) -> None:
        async with asyncio.timeout(STALL_S):
            while not all(job.claim.job_id in self.left for job in jobs):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)


@asynccontextmanager
async def publishing(url: str, queue: Queue) -> AsyncIterator[Desk]:
    left: dict[str, str] = {}

    def gone(job: ActiveJob, state: str) -> None:
        left[job.claim.job_id] = state
        publisher.discard(job)

    async with connect(url) as connection:
        publisher = Publisher(connection, queue.cell, stop=lambda job, reason: None, gone=gone, ended=lambda call: None)
        running = asyncio.create_task(publisher.run())
        try:
            yield Desk(publisher, left)
        finally:
            running.cancel()


def claimed(queue: Queue, count: int) -> list[ActiveJob]:
    for _ in range(count):
        queue.submit()
    call = queue.cell.claim(MODEL, "w", max_jobs=count, max_tokens=9999, lease_ms=60_000, idle=True)
    jobs = [ActiveJob(claim) for claim in run_sync(queue.connection, call).jobs]
    assert len(jobs) == count
    for job in jobs:
        job.begin(EncodedPrompt([7, 8, 9]), tokenizer=None, token_bytes=lambda token: b"")
    return jobs


@pytest.mark.parametrize("mended", [True, False])
async def test_a_job_that_cannot_be_stored_goes_alone_and_takes_no_other_with_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, mended: bool
) -> None:
    if not mended:
        monkeypatch.setattr(calls, "_mending", lambda *failed: Cell().probe())
    with redis.Redis.from_url(redis_url) as connection:
        queue = known_queue(connection)
        jobs = claimed(queue, 5)
        broken, fine = jobs[2], [*jobs[:2], *jobs[3:]]
        connection.xadd(queue.cell.keys.stream(broken.claim.job_id), {"d": "somebody else's"}, id="999-0")
        async with publishing(redis_url, queue) as desk:
            for number, job in enumerate(jobs):
                desk.add(job, [number, 1, 2], last=job in fine or mended)
            await desk.has_left(*jobs)
        assert desk.left == {job.claim.job_id: "refused" if job is broken and not mended else "ok" for job in jobs}
        for job in jobs if mended else fine:
            assert queue.wait(job.claim.job_id).token_ids == (jobs.index(job), 1, 2)


async def test_a_wrong_password_is_named_once_and_costs_nothing_once_it_is_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedServer(data_dir=tmp_path) as server, redis.Redis.from_url(server.url) as connection:
        queue = known_queue(connection)
        (job,) = claimed(queue, 1)
        async with publishing(server.url, queue) as desk:
            desk.add(job, [1, 2], last=False)
            while queue.stored(job.claim.job_id) < 2:  # noqa: ASYNC110 - the server is another process
                await asyncio.sleep(0.01)
            with caplog.at_level(logging.INFO, "octavo_worker"):
                connection.config_set("requirepass", "secret")
                connection.execute_command("AUTH", "secret")
                connection.client_kill_filter(_type="normal", skipme=True)
                desk.add(job, [3, 4], last=True)
                await asyncio.sleep(0.5)  # several attempts
                assert not desk.left
                connection.config_set("requirepass", "")
                await desk.has_left(job)
        assert desk.left == {job.claim.job_id: "ok"}
        result = queue.wait(job.claim.job_id)
        assert (result.status, result.token_ids) == (JobStatus.COMPLETED, (1, 2, 3, 4))
        complaints = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(complaints) == 1
        assert "--redis-url" in complaints[0].getMessage()
        assert "secret" not in caplog.text
