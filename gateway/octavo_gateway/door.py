"""The door into the queue. A request that becomes jobs passes it whatever its dialect, and is checked, submitted and
counted here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Request
from pydantic import BaseModel

from octavo import AsyncClient, AsyncJob
from octavo.dialects.grammar.checks import GrammarChecks
from octavo.terms.errors import JobNotFound, OctavoError, ServerUnavailable
from octavo.terms.fields import IdempotencyKey
from octavo.terms.models import JobRequest
from octavo_gateway.auth.callers import caller_of
from octavo_gateway.cards import Cards
from octavo_gateway.errors import ApiError
from octavo_gateway.http.streams import unless_disconnected
from octavo_gateway.http.tracing import trace_of
from octavo_gateway.status.metrics import Metrics

KeyHeader = Annotated[IdempotencyKey | None, Header()]
"""A request with it may be repeated, and is answered by the jobs of the first one."""

_RETRY_AFTER_S = 5  # a worker that is replaced needs longer still

_DELIVERY = {"stream", "stream_options"}
"""Fields that say how an answer is sent, and nothing of what it is: a repeat may ask for another way."""


@dataclass(frozen=True)
class Repeatable:
    """A request that a client may send again: its key, and a digest of all that it asks for; without one it asks for
    nothing but its job."""

    key: str
    fingerprint: bytes = b""

    @classmethod
    def of(cls, key: str | None, body: BaseModel) -> Repeatable | None:
        """None without a key."""
        if key is None:
            return None
        asked = body.model_dump_json(exclude=_DELIVERY, exclude_defaults=True)
        return cls(key, f"{type(body).__name__} {asked}".encode())

    def keys(self, jobs: int) -> list[str]:
        """One for each job. A header has no line breaks, so that these are the keys of no other request."""
        return [self.key, *(f"{self.key}\n{number}" for number in range(1, jobs))]


@dataclass(frozen=True)
class Entry:
    """One request of a client: the jobs that answer it, one or more, and the tenant that they belong to.

    All jobs have the same grammar and tools. `grammar_field` and `tool_schema` say where these stand in the request,
    the latter with braces for the tool's number. An attachment is that of a single job. `follow`: events are read next.
    `background`: for webhooks, its end is that of a response.
    """

    jobs: Sequence[JobRequest]
    tenant: str
    grammar_field: str | None = None
    tool_schema: str = "tools.{}.function.parameters"
    repeatable: Repeatable | None = None
    attachment: bytes = b""
    follow: bool = True
    background: bool = False


class Door:
    """One a gateway process. Unless it `waits_for_workers`, it lets nothing in that no worker would take now."""

    def __init__(self, client: AsyncClient, metrics: Metrics, cards: Cards, *, waits_for_workers: bool = True) -> None:
        self._client = client
        self._cards = cards
        self._metrics = metrics
        self._grammars = GrammarChecks()
        self._waits_for_workers = waits_for_workers

    def close(self) -> None:
        """End what tries grammars."""
        self._grammars.close()

    async def enter(self, entry: Entry, request: Request) -> list[AsyncJob]:
        """The jobs of a request, once all are in the queue; of one that is repeated, those of before. A trial of its
        grammar ends when the client goes away. Raises GrammarError, Busy, ClientGone, and what `AsyncClient.submit`
        raises: then no job of it goes on, but for one that may be repeated, whose repeat finds those that were
        accepted. Raises ApiError 503 where no worker of the model is alive and jobs are not to wait for one, 403 for
        a model that the request's key is not for."""
        caller, first = await caller_of(request), entry.jobs[0]
        caller.check_model(first.model)
        await self._check_workers(entry, first.model)
        if self._grammars.are_needed(first):
            checking = self._grammars.check_request(
                first, entry.grammar_field, tenant=entry.tenant, of_tools=entry.tool_schema
            )
            await unless_disconnected(request, checking)
        jobs = await self._submitted(entry, caller.key_id, trace_of(request))
        request.state.rates = next((job.rates for job in reversed(jobs) if job.rates is not None), None)
        if created := sum(job.created for job in jobs):
            self._metrics.jobs_submitted.labels(first.model, first.priority).inc(created)
        return jobs

    async def leave(self, job_ids: Iterable[str]) -> None:
        """Cancel jobs that have lost their client. Without the server, or without the job, there is nothing to stop."""
        for job_id in job_ids:
            with suppress(JobNotFound, ServerUnavailable):
                await self._client.cancel(job_id)

    async def _check_workers(self, entry: Entry, model: str) -> None:
        if self._waits_for_workers:
            return
        card = await self._cards.of(model)
        if card is None or await self._cards.is_served(card):
            return  # one that is not known the queue refuses, and says which there are
        repeatable = entry.repeatable
        if repeatable is not None and await self._client.is_repeat(repeatable.key, tenant=entry.tenant):
            return  # its jobs are there, and may have ended
        raise ApiError(
            503,
            f"no worker of the model {model!r} is alive: try again later",
            code="no_live_worker",
            headers={"Retry-After": str(_RETRY_AFTER_S)},
        )

    async def _submitted(self, entry: Entry, key_id: str, trace: str) -> list[AsyncJob]:
        repeatable = entry.repeatable
        fingerprint = b"" if repeatable is None else repeatable.fingerprint
        if len(entry.jobs) == 1:
            return [
                await self._client.submit(
                    entry.jobs[0],
                    tenant=entry.tenant,
                    idempotency_key=None if repeatable is None else repeatable.key,
                    follow=entry.follow,
                    attachment=entry.attachment,
                    fingerprint=fingerprint,
                    key_id=key_id,
                    background=entry.background,
                    trace=trace,
                )
            ]
        answers = await self._client.submit_many(
            entry.jobs,
            tenant=entry.tenant,
            idempotency_keys=None if repeatable is None else repeatable.keys(len(entry.jobs)),
            follow=entry.follow,
            fingerprint=fingerprint,
            key_id=key_id,
            trace=trace,
        )
        jobs = [answer for answer in answers if isinstance(answer, AsyncJob)]
        refusals = [answer for answer in answers if isinstance(answer, OctavoError)]
        if refusals:
            if repeatable is None:
                await self.leave([job.id for job in jobs])
            raise refusals[0]
        return jobs
