"""Jobs that were given up: looked at, submitted again, and taken off their list, one by one or in bulk."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from octavo.client.fleet import FleetQueries
from octavo.client.handles import AsyncJob
from octavo.queue.calls import run
from octavo.queue.jobs import Submission, read_submission
from octavo.queue.operating.dead_letters import (
    Chosen,
    entries,
    entries_by_job,
    list_dead_letters,
    remove_dead_letters,
)
from octavo.queue.operating.lanes import LaneCell
from octavo.terms.errors import OctavoError, ServerUnavailable
from octavo.terms.models import DeadLetter

_PURGED_AT_ONCE = 500


class DeadLetterDesk(FleetQueries):
    """The part of `AsyncClient` that is about jobs which were given up. `model`, `tenant` and `reason` choose among
    them: without one of these, any."""

    async def dead_letters(
        self, limit: int = 100, *, model: str | None = None, tenant: str | None = None, reason: str | None = None
    ) -> list[DeadLetter]:
        """Jobs that were given up, the latest first."""
        async with self._asking():
            return await list_dead_letters(self._redis, self._keys, limit, Chosen(model, tenant, reason))

    async def requeue(self, job_id: str) -> AsyncJob:
        """Submit a job that was given up once more, as a new job with the same request, tenant, API key and seed, and
        take it off the list of dead letters. A repeated call gives the same job. Raises JobNotFound, and InvalidRequest
        for a job that was not given up."""
        return await self._requeue(job_id, await self._listed())

    async def requeue_all(
        self, *, model: str | None = None, tenant: str | None = None, reason: str | None = None
    ) -> tuple[dict[str, str], dict[str, OctavoError]]:
        """`requeue` for each job that was chosen, the oldest first: new jobs by the old ones, and why others stay. It
        may be repeated: none is submitted twice."""
        async with self._asking():
            chosen = await list_dead_letters(self._redis, self._keys, None, Chosen(model, tenant, reason))
        return await self.requeue_each(letter.job_id for letter in reversed(chosen))

    async def requeue_each(self, job_ids: Iterable[str]) -> tuple[dict[str, str], dict[str, OctavoError]]:
        """`requeue` for each of these jobs: new jobs by the old ones, and why others stay."""
        requeued: dict[str, str] = {}
        failed: dict[str, OctavoError] = {}
        listed = await self._listed()
        for job_id in dict.fromkeys(job_ids):
            try:
                requeued[job_id] = (await self._requeue(job_id, listed)).id
            except ServerUnavailable:
                raise
            except OctavoError as error:
                failed[job_id] = error
        return requeued, failed

    async def purge(self, *, model: str | None = None, tenant: str | None = None, reason: str | None = None) -> int:
        """Take the jobs that were chosen off the list, and drop their requests. How many there were."""
        async with self._asking():
            found = entries(self._redis, self._keys, Chosen(model, tenant, reason))
            pairs = [(entry, letter.job_id) async for entry, letter in found]
        purged = 0
        for start in range(0, len(pairs), _PURGED_AT_ONCE):
            with self._errors():
                purged += await run(self._redis, LaneCell(self._keys).purge(pairs[start : start + _PURGED_AT_ONCE]))
        return purged

    async def _listed(self) -> dict[str, list[bytes]]:
        async with self._asking():
            return await entries_by_job(self._redis, self._keys)

    async def _requeue(self, job_id: str, listed: Mapping[str, Sequence[bytes]]) -> AsyncJob:
        async with self._asking():
            given_up = await read_submission(self._redis, job_id)
        job = await self._submit_again(job_id, given_up)
        async with self._asking():
            await remove_dead_letters(self._redis, self._keys, listed.get(job_id, ()))
        return job

    @abstractmethod
    async def _submit_again(self, job_id: str, given_up: Submission) -> AsyncJob: ...
