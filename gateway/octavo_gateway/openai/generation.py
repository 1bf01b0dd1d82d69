"""The jobs behind one OpenAI-style request. They live as long as their client is connected, unless it may repeat it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from fastapi import Request

from octavo.dialects.openai.answers import total_usage
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.models import JobRequest
from octavo_gateway.door import Entry, Repeatable
from octavo_gateway.errors import of_job
from octavo_gateway.state import Gateway
from octavo_gateway.status.metrics import TokenClock

OnChunk = Callable[[int, Chunk], Awaitable[None]]


class Generation:
    """One or more submitted jobs of the same request.

    `follow` must be called once: it ends with all jobs terminal, however it ends, unless the request is `repeatable`.
    `grammar_field`: which field of the request gave all jobs their grammar. `created`: when they were accepted, in
    seconds since the epoch.
    """

    def __init__(
        self,
        gateway: Gateway,
        requests: Sequence[JobRequest],
        tenant: str,
        grammar_field: str | None = None,
        repeatable: Repeatable | None = None,
    ) -> None:
        self._gateway = gateway
        self._requests = requests
        self._entry = Entry(requests, tenant, grammar_field=grammar_field, repeatable=repeatable)
        self._open: set[str] = set()
        self._is_new = True
        self.job_ids: list[str] = []
        self.created = 0
        self.ends: list[Terminal | None] = [None] * len(requests)
        sequences = sum(request.sampling.n for request in requests)
        self._clock = TokenClock(gateway.metrics, requests[0].model, sequences, gateway.exemplar())

    @property
    def usage(self) -> Usage:
        """Usage of the jobs that have ended."""
        return total_usage(end for end in self.ends if end is not None)

    async def submit(self, request: Request) -> None:
        """Put all jobs into the queue, or find those of the request that this one repeats. Raises what the door
        raises."""
        jobs = await self._gateway.door.enter(self._entry, request)
        self.job_ids = [job.id for job in jobs]
        if self._entry.repeatable is None:
            self._open.update(self.job_ids)
        self._is_new = all(job.created for job in jobs)
        info = jobs[0].accepted or await jobs[0].info()
        self.created = int(info.created_at)

    async def follow(self, on_chunk: OnChunk) -> None:
        """Call `on_chunk(prompt_index, chunk)` for all tokens until every job has completed.

        Raises ApiError when one fails. Leaving early, by an error or by cancellation, cancels what still runs and
        cannot be asked for again.
        """
        tasks = [asyncio.ensure_future(self._follow(i, job, on_chunk)) for i, job in enumerate(self.job_ids)]
        try:
            await asyncio.gather(*tasks)
            if self._is_new:
                self._clock.end()
        finally:
            for task in tasks:
                task.cancel()
            await self._gateway.door.leave(list(self._open))

    async def _follow(self, index: int, job_id: str, on_chunk: OnChunk) -> None:
        async with aclosing(self._gateway.client.events(job_id)) as events:
            async for event in events:
                if event.chunk is not None:
                    await self._pass_on(index, event.chunk, on_chunk)
                if event.end is not None:
                    self._open.discard(job_id)
                    if event.end.status is not JobStatus.COMPLETED:
                        raise of_job(event.end.status, event.end.error)
                    self.ends[index] = event.end

    async def _pass_on(self, index: int, chunk: Chunk, on_chunk: OnChunk) -> None:
        if self._is_new:
            self._clock.tokens(len(chunk.token_ids))
            if chunk.finish_reason is not None:
                self._gateway.metrics.requests_finished.labels(self._requests[index].model, chunk.finish_reason).inc()
        await on_chunk(index, chunk)
