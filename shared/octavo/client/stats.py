"""Readings of the fleet, one after the other: figures that are there, and rates since the reading before."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from statistics import median
from typing import Any

import redis.asyncio

from octavo.queue.batches.keys import BatchKeys
from octavo.queue.batches.reading import list_open
from octavo.queue.fleet import beating_workers
from octavo.queue.keys import Keys
from octavo.queue.operating.dead_letters import list_dead_letters
from octavo.queue.overview.lanes import LaneReader
from octavo.queue.webhooks.failing import list_failing
from octavo.queue.webhooks.keys import WebhookKeys
from octavo.terms.batches import BatchInfo, BatchStatus
from octavo.terms.fleet import BatchProgress, FleetStats, Lane, WorkerFigures
from octavo.terms.workers import WorkerInfo

BATCHES_LISTED = DEAD_LISTED = ENDPOINTS_LISTED = 50
_RECENT_S = 60.0  # of first tokens


class StatsReader:
    """One reader of one client, which `asking` makes ready for a question. Every reading raises ServerUnavailable."""

    def __init__(
        self, connection: redis.asyncio.Redis, keys: Keys, asking: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        self._redis = connection
        self._keys = keys
        self._asking = asking
        self._lanes = LaneReader(connection, keys)
        self._rates = _Rates()
        self._firsts = _FirstTokens()

    async def read(self) -> FleetStats:
        """The fleet now."""
        async with self._asking():
            lanes, queued, running = await self._lanes.read()
            beats = await beating_workers(self._redis, self._keys)
            batches = await list_open(self._redis, BatchKeys(self._keys), BATCHES_LISTED)
            letters = await list_dead_letters(self._redis, self._keys, DEAD_LISTED)
            webhooks = await list_failing(self._redis, WebhookKeys(self._keys), ENDPOINTS_LISTED)
            dead: Any = await self._redis.xlen(self._keys.dead_letters)
        now = time.time()
        self._rates.note(beats)
        self._firsts.note(lanes, now)
        workers = tuple(self._figures(info, now) for info, _ in beats)
        return FleetStats(
            at=now,
            queued=queued,
            running=running,
            tokens_per_s=round(sum(worker.tokens_per_s or 0.0 for worker in workers), 1),
            lanes=lanes,
            workers=workers,
            batches=tuple(_progress(info, now) for info in batches),
            dead=dead,
            dead_letters=tuple(letters),
            webhooks=tuple(webhooks),
        )

    def _figures(self, info: WorkerInfo, now: float) -> WorkerFigures:
        stats = info.stats
        return WorkerFigures(
            id=info.id,
            model=info.model,
            host=info.host,
            pid=info.pid,
            started_at=info.started_at,
            running=stats.running,
            waiting=stats.waiting,
            max_running=stats.max_running,
            step_ms=round(stats.step_ms, 2),
            preemptions=stats.preemptions,
            blocks=stats.blocks(),
            states=stats.states(),
            windows=stats.windows(),
            tokens_per_s=self._rates.of(info.id),
            first_token_s=self._firsts.of(info.id, now),
        )


class _Rates:
    """Tokens a second of each worker between its two latest heartbeats that were seen."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int, float | None]] = {}  # worker -> time, tokens, rate

    def note(self, beats: Sequence[tuple[WorkerInfo, float]]) -> None:
        seen: dict[str, tuple[float, int, float | None]] = {}
        for info, at in beats:
            made = info.stats.generated_tokens
            before = self._seen.get(info.id)
            if before is None:
                seen[info.id] = (at, made, None)
            elif at <= before[0]:
                seen[info.id] = before
            else:
                seen[info.id] = (at, made, round(max(0, made - before[1]) / (at - before[0]), 1))
        self._seen = seen

    def of(self, worker: str) -> float | None:
        return self._seen[worker][2]


class _FirstTokens:
    """Seconds from submissions to first tokens, of jobs that came or were seen without any before."""

    def __init__(self) -> None:
        self._without: set[str] = set()
        self._with: set[str] = set()
        self._noted_at = 0.0
        self._seen: dict[str, deque[tuple[float, float]]] = {}  # worker -> time, seconds

    def note(self, lanes: Iterable[Lane], now: float) -> None:
        jobs = [job for lane in lanes for job in lane.jobs]
        for job in jobs:
            is_first = job.id in self._without or job.created_at > self._noted_at > 0  # it came since then
            if job.tokens and job.worker is not None and is_first and job.id not in self._with:
                self._seen.setdefault(job.worker, deque(maxlen=256)).append((now, now - job.created_at))
        self._without = {job.id for job in jobs if not job.tokens}
        self._with = {job.id for job in jobs if job.tokens}
        self._noted_at = now
        self._seen = {worker: seen for worker, seen in self._seen.items() if seen[-1][0] > now - _RECENT_S}

    def of(self, worker: str, now: float) -> float | None:
        seconds = [taken for at, taken in self._seen.get(worker, ()) if at > now - _RECENT_S]
        return round(median(seconds), 3) if seconds else None


def _progress(info: BatchInfo, now: float) -> BatchProgress:
    ended = info.completed + info.failed
    began = info.reached.get(BatchStatus.IN_PROGRESS)
    predicted = None
    if began is not None and ended and info.status is BatchStatus.IN_PROGRESS:
        predicted = round(now + max(0, info.total - ended) * (now - began) / ended)
    return BatchProgress(
        id=info.id,
        tenant=info.tenant,
        status=info.status,
        endpoint=info.endpoint,
        model=info.model,
        total=info.total,
        submitted=info.cursor,
        completed=info.completed,
        failed=info.failed,
        created_at=info.created_at,
        expires_at=info.expires_at,
        predicted_end=predicted,
    )
