"""The door into the queue. A request that becomes jobs passes it whatever its dialect, and is checked, submitted and
counted here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from octavo import AsyncClient, AsyncJob
from octavo.dialects.grammar.checks import GrammarChecks
from octavo.terms.errors import JobNotFound, OctavoError, ServerUnavailable
from octavo.terms.models import JobRequest
from octavo_gateway.status.metrics import Metrics


@dataclass(frozen=True)
class Entry:
    """One request of a client: the jobs that answer it, one or more, and the tenant that they belong to.

    All jobs have the same grammar and tools. `grammar_field` and `tool_schema` say where these stand in the request,
    the latter with braces for the tool's number. Idempotency key and attachment are those of a single job. `follow`:
    events are read next.
    """

    jobs: Sequence[JobRequest]
    tenant: str
    grammar_field: str | None = None
    tool_schema: str = "tools.{}.function.parameters"
    idempotency_key: str | None = None
    attachment: bytes = b""
    follow: bool = True


class Door:
    """One a gateway process."""

    def __init__(self, client: AsyncClient, metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics
        self._grammars = GrammarChecks()

    async def enter(self, entry: Entry) -> list[AsyncJob]:
        """The jobs of a request, once all are in the queue; of an idempotency key that is known, those of before.
        Raises GrammarError, and what `AsyncClient.submit` raises: then no job of it goes on."""
        first = entry.jobs[0]
        await self._grammars.check_request(first, entry.grammar_field, of_tools=entry.tool_schema)
        jobs = await self._submitted(entry)
        if created := sum(job.created for job in jobs):
            self._metrics.jobs_submitted.labels(first.model, first.priority).inc(created)
        return jobs

    async def leave(self, job_ids: Iterable[str]) -> None:
        """Cancel jobs that have lost their client. Without the server, or without the job, there is nothing to stop."""
        for job_id in job_ids:
            with suppress(JobNotFound, ServerUnavailable):
                await self._client.cancel(job_id)

    async def _submitted(self, entry: Entry) -> list[AsyncJob]:
        if len(entry.jobs) == 1:
            return [
                await self._client.submit(
                    entry.jobs[0],
                    tenant=entry.tenant,
                    idempotency_key=entry.idempotency_key,
                    follow=entry.follow,
                    attachment=entry.attachment,
                )
            ]
        answers = await self._client.submit_many(entry.jobs, tenant=entry.tenant, follow=entry.follow)
        jobs = [answer for answer in answers if isinstance(answer, AsyncJob)]
        refusals = [answer for answer in answers if isinstance(answer, OctavoError)]
        if refusals:
            await self.leave([job.id for job in jobs])
            raise refusals[0]
        return jobs
