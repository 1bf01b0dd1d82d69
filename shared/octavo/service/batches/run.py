"""The run of a batch: its lines as jobs, a window of them at a time, and their answers as they end.

Every job gets an idempotency key made of the output's path and its request. A run that was interrupted is continued by
the next one: jobs that went on meanwhile are collected, nothing is generated twice.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TextIO

from octavo.client.asynchronous import AsyncClient
from octavo.client.handles import AsyncJob, ensure_completed
from octavo.dialects.openai.answers import CompletedJob
from octavo.dialects.openai.batch.answers import encode
from octavo.service.batches.grammars import LineGrammars
from octavo.service.batches.lines import BatchLine, completed, failed
from octavo.terms.errors import OctavoError, QueueFull, RateLimited, ServerUnavailable
from octavo.terms.messages import JobStatus
from octavo.terms.models import JobRequest
from octavo.terms.workers import WorkerInfo

MAX_WINDOW = 10_000
LEAST_WINDOW = 256
"""Where no worker is there to go by."""


@dataclass
class _OpenLine:
    """A line whose jobs have not all ended."""

    line: BatchLine
    jobs: dict[int, CompletedJob] = field(default_factory=dict)
    error: OctavoError | None = None
    ended: int = 0


@dataclass
class BatchRun:
    """One run. `target` is a part of every idempotency key: another output has other answers."""

    target: str
    tenant: str
    output: TextIO
    advance: Callable[[], None]
    finished: int = 0
    failures: int = 0
    first_failure: tuple[str, str] | None = None
    grammars: LineGrammars = field(default_factory=LineGrammars)

    async def run(self, redis_url: str | None, lines: list[BatchLine], window: int | None) -> None:
        """Answer all lines, with at most `window` jobs at a time."""
        remaining = self._jobs(lines)
        jobs = sum(len(line.requests) for line in lines)
        async with AsyncClient(redis_url) as client:
            if window is None:
                models = {request.model for line in lines for request in line.requests}
                models |= {card.name for card in await client.models() if not models.isdisjoint(card.aliases)}
                window = window_for(await client.workers(), models)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(max(1, min(window, jobs))):
                        group.create_task(self._take(client, remaining))
            except* (ServerUnavailable, OSError) as failures:
                raise failures.exceptions[0] from None

    def _jobs(self, lines: list[BatchLine]) -> Iterator[tuple[_OpenLine, int]]:
        """Every job of every line. A line without any is answered on the way."""
        for line in lines:
            if line.error is not None:
                self._write_failure(line, line.error)
                continue
            opened = _OpenLine(line)
            yield from ((opened, index) for index in range(len(line.requests)))

    async def _take(self, client: AsyncClient, remaining: Iterator[tuple[_OpenLine, int]]) -> None:
        for opened, index in remaining:
            try:
                opened.jobs[index] = await self._answer(client, opened.line, index)
            except ServerUnavailable:
                raise
            except OctavoError as error:
                opened.error = opened.error or error
            opened.ended += 1
            if opened.ended == len(opened.line.requests):
                self._write_line(opened)

    async def _answer(self, client: AsyncClient, line: BatchLine, index: int) -> CompletedJob:
        job = await self._submit(client, line, index)
        chunks = []
        async with aclosing(job.events()) as events:
            async for event in events:
                if event.chunk is not None:
                    chunks.append(event.chunk)
                if event.end is not None:
                    ensure_completed(job.id, event.end.status, event.end.error)
                    return CompletedJob(job.id, chunks, event.end)
        raise AssertionError("a stream ends with its job")

    async def _submit(self, client: AsyncClient, line: BatchLine, index: int) -> AsyncJob:
        """A job of the line: a new one, that of an interrupted run, or another try if an earlier run's one failed."""
        request = line.requests[index]
        await self.grammars.check(request, line.request.grammar_field if line.request else None)
        parts = (self.target, line.id, str(index), request.model_dump_json())
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        for attempt in count():
            key = f"batch-{digest}-{attempt}"
            job = await self._enqueue(client, request, key)
            if job.created:
                return job
            if (await job.info()).status in (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.COMPLETED):
                return job
        raise AssertionError("unreachable")

    async def _enqueue(self, client: AsyncClient, request: JobRequest, key: str) -> AsyncJob:
        while True:
            try:
                return await client.submit(request, tenant=self.tenant, idempotency_key=key)
            except QueueFull as full:
                if isinstance(full, RateLimited) and not full.can_retry:
                    raise
                await asyncio.sleep(full.retry_after_s)

    def _write_line(self, opened: _OpenLine) -> None:
        if opened.error is not None:
            self._write_failure(opened.line, opened.error)
        else:
            self._write(completed(opened.line, [job for _, job in sorted(opened.jobs.items())]))

    def _write_failure(self, line: BatchLine, error: OctavoError) -> None:
        self.failures += 1
        self.first_failure = self.first_failure or (line.custom_id, error.message)
        self._write(failed(line, error))

    def _write(self, answer: dict[str, Any]) -> None:
        self.output.write(encode(answer))
        self.output.flush()
        self.finished += 1
        self.advance()


def window_for(workers: Iterable[WorkerInfo], models: Collection[str]) -> int:
    """As many jobs as live workers of these models run, and as many again, so that none waits for the next job. Those
    of the class batch hold up no others."""
    rows = sum(worker.stats.max_running for worker in workers if worker.model in models)
    return min(2 * rows or LEAST_WINDOW, MAX_WINDOW)
