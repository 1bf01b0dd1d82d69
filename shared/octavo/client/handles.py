"""Handles on single jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from octavo.terms.access.read_tokens import DEFAULT_S
from octavo.terms.errors import JobFailed
from octavo.terms.limits import Rates
from octavo.terms.messages import JobError, JobStatus
from octavo.terms.models import Event, JobInfo, Result

if TYPE_CHECKING:
    from octavo.client.asynchronous import AsyncClient


class AsyncJob:
    """A handle on one job. `accepted` is how it stood when this client submitted it; None of any other job. `rates`:
    what its tenant had left then, where it has limits."""

    def __init__(
        self, client: AsyncClient, job_id: str, accepted: JobInfo | None = None, rates: Rates | None = None
    ) -> None:
        self.id = job_id
        self.accepted = accepted
        self.rates = rates
        self._client = client

    def __repr__(self) -> str:
        return f"AsyncJob({self.id!r})"

    @property
    def created(self) -> bool:
        """True if the submission made the job, False if its idempotency key named one that existed."""
        return self.accepted is not None

    def events(self, after: int | str = 0) -> AsyncGenerator[Event, None]:
        """Every event beyond an offset or a position, as it comes, the end last, however the job ended."""
        return self._client.events(self.id, after)

    async def stream(self, after: int | str = 0) -> AsyncGenerator[Event, None]:
        """Tokens beyond an offset or a position, as they come. Raises JobFailed after the last if the job did not
        complete."""
        async with aclosing(self.events(after)) as events:
            async for event in events:
                if event.end is None:
                    yield event
                else:
                    ensure_completed(self.id, event.end.status, event.end.error)

    async def result(self, timeout: float | None = None) -> Result:  # noqa: ASYNC109
        """The completed job. Raises JobFailed if it ended otherwise, TimeoutError after `timeout` seconds."""
        result = await self._client.result(self.id, timeout)
        ensure_completed(self.id, result.status, result.error)
        return result

    async def info(self) -> JobInfo:
        """Where the job stands."""
        return await self._client.info(self.id)

    async def read_token(self, seconds: int = DEFAULT_S) -> str:
        """A token with which a browser reads this job, and nothing else; see `AsyncClient.read_token`."""
        return await self._client.read_token(self.id, seconds)

    async def cancel(self) -> JobStatus:
        """Ask for the job's end; see `AsyncClient.cancel`."""
        return await self._client.cancel(self.id)


def ensure_completed(job_id: str, status: JobStatus, error: JobError | None) -> None:
    """Raises JobFailed unless the job completed."""
    if status is JobStatus.COMPLETED:
        return
    if error is None:
        raise JobFailed(f"job {job_id} was {status.value}", status=status.value)
    message = f"job {job_id} {status.value}: {error.message}"
    raise JobFailed(message, status=status.value, code=error.code, param=error.param)
