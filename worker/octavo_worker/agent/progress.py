"""How far beam searches are, since their tokens all come at the end: the latest state, now and then."""

from __future__ import annotations

import asyncio
import contextlib

import redis.asyncio
from redis.exceptions import RedisError

from octavo.queue.calls import run_many
from octavo.queue.protocol import Cell
from octavo.terms.messages import Progress
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.contract.messages import BeamProgress

_INTERVAL_S = 0.25


class ProgressReports:
    """Keeps the engine's latest word on each search and sends it at most four times a second."""

    def __init__(self, connection: redis.asyncio.Redis, cell: Cell) -> None:
        self._connection = connection
        self._cell = cell
        self._latest: dict[str, tuple[ActiveJob, BeamProgress]] = {}
        self._news = asyncio.Event()

    def add(self, job: ActiveJob, progress: BeamProgress) -> None:
        self._latest[job.request_id] = job, progress
        self._news.set()

    def discard(self, job: ActiveJob) -> None:
        self._latest.pop(job.request_id, None)

    async def run(self) -> None:
        """For ever. What the server does not take is lost: the next word comes soon."""
        while True:
            await self._news.wait()
            self._news.clear()
            latest, self._latest = list(self._latest.values()), {}
            calls = [
                self._cell.progress(job.claim.job_id, job.claim.token, _as_told(job, progress))
                for job, progress in latest
                if not job.is_over
            ]
            if calls:
                with contextlib.suppress(RedisError, OSError):
                    await run_many(self._connection, calls)
            await asyncio.sleep(_INTERVAL_S)


def _as_told(job: ActiveJob, progress: BeamProgress) -> Progress:
    return Progress(
        attempt=job.claim.attempt,
        tokens=len(progress.tokens),
        score=progress.score,
        finished=progress.finished,
        text=job.text_of(progress.tokens),
    )
