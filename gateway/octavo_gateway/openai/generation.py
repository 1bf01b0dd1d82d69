"""The jobs behind one OpenAI-style request. They live as long as their client is connected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress

from fastapi import Request

from octavo import AsyncJob
from octavo.dialects.openai.answers import total_usage
from octavo.terms.errors import JobNotFound, OctavoError, ServerUnavailable
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.models import JobRequest
from octavo_gateway.errors import of_job
from octavo_gateway.grammars import check_grammars
from octavo_gateway.state import Gateway
from octavo_gateway.status.metrics import TokenClock

OnChunk = Callable[[int, Chunk], Awaitable[None]]


class Generation:
    """One or more submitted jobs of the same request.

    `follow` must be called once: it ends with all jobs terminal, however it ends. `grammar_field`: which field of the
    request gave all jobs their grammar.
    """

    def __init__(
        self, gateway: Gateway, requests: Sequence[JobRequest], tenant: str, grammar_field: str | None = None
    ) -> None:
        self._gateway = gateway
        self._requests = requests
        self._tenant = tenant
        self._grammar_field = grammar_field
        self._open: set[str] = set()
        self.job_ids: list[str] = []
        self.created = int(time.time())
        self.ends: list[Terminal | None] = [None] * len(requests)
        sequences = sum(request.sampling.n for request in requests)
        self._clock = TokenClock(gateway.metrics, requests[0].model, sequences)

    @property
    def usage(self) -> Usage:
        """Of the jobs that have ended."""
        return total_usage(end for end in self.ends if end is not None)

    async def submit(self, request: Request) -> None:
        """Enqueue all jobs, or cancel those that were. Raises what the client raises, and what is wrong with a
        grammar."""
        await check_grammars(request, self._requests[0], self._tenant, self._grammar_field)
        answers = await self._gateway.client.submit_many(self._requests, tenant=self._tenant, follow=True)
        self.job_ids = [answer.id for answer in answers if isinstance(answer, AsyncJob)]
        self._open.update(self.job_ids)
        refusals = [answer for answer in answers if isinstance(answer, OctavoError)]
        if refusals:
            await self._cancel()
            raise refusals[0]
        first = self._requests[0]
        self._gateway.metrics.jobs_submitted.labels(first.model, first.priority).inc(len(self.job_ids))

    async def follow(self, on_chunk: OnChunk) -> None:
        """Call `on_chunk(prompt_index, chunk)` for all tokens until every job has completed.

        Raises ApiError when one fails. Leaving early, by an error or by cancellation, cancels what still runs.
        """
        tasks = [asyncio.ensure_future(self._follow(i, job, on_chunk)) for i, job in enumerate(self.job_ids)]
        try:
            await asyncio.gather(*tasks)
            self._clock.end()
        finally:
            for task in tasks:
                task.cancel()
            await self._cancel()

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
        self._clock.tokens(len(chunk.token_ids))
        if chunk.finish_reason is not None:
            self._gateway.metrics.requests_finished.labels(self._requests[index].model, chunk.finish_reason).inc()
        await on_chunk(index, chunk)

    async def _cancel(self) -> None:
        while self._open:
            job_id = self._open.pop()
            # Without the server, or without the job, there is nothing to stop, and the client is gone anyway.
            with suppress(JobNotFound, ServerUnavailable):
                await self._gateway.client.cancel(job_id)
