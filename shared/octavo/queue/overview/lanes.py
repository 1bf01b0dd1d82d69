"""Lanes: the jobs of each model and class that wait or run. Reading them costs no more than a few hundred commands a
lane, however many jobs there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import redis.asyncio

from octavo.queue.connection import answered
from octavo.queue.jobs import locate
from octavo.queue.keys import JobHash, Keys
from octavo.queue.operating.lanes import parse_pauses
from octavo.queue.overview.standing import parked_members
from octavo.terms.errors import JobNotFound
from octavo.terms.fields import Priority
from octavo.terms.fleet import Lane, LaneJob
from octavo.terms.messages import JobStatus

JOBS_LISTED = 200
"""Most jobs of a lane that are listed."""

_TENANTS = 500  # of a lane whose backlogs are counted
_RUNNING = 1000  # jobs of all lanes that are looked at
_RETURNING = 200  # jobs of a model that come back, of each kind
_CLASSES: tuple[Priority, ...] = get_args(Priority)
_FIELDS = (
    *(JobHash.STATUS, JobHash.MODEL, JobHash.TENANT, JobHash.PRIORITY, JobHash.TOKENS, JobHash.COST),
    *(JobHash.ATTEMPTS, JobHash.CREATED_MS, JobHash.STARTED_MS, JobHash.WORKER),
)

Place = tuple[str, str]
"""A model and a class."""


@dataclass
class _Backlog:
    """Jobs that wait in one lane: how many, and the first of each tenant."""

    waiting: int = 0
    ids: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    place: Place
    job: LaneJob


class LaneReader:
    """Reads again and again: of jobs that still wait it knows what it has read before."""

    def __init__(self, connection: redis.asyncio.Redis, keys: Keys) -> None:
        self._redis = connection
        self._keys = keys
        self._waiting: dict[str, _Row] = {}

    async def read(self) -> tuple[tuple[Lane, ...], int, int]:
        """The lanes of all models, and how many jobs wait and run in all."""
        async with answered():
            models, running_ids, counters, running, pauses = await self._ids()
            backlogs, returning = await self._backlogs(models)
            waiting_ids = [*returning, *(job_id for backlog in backlogs.values() for job_id in backlog.ids)]
            rows = await self._rows(running_ids, waiting_ids)
        for job_id in returning:
            if (row := rows.get(job_id)) is not None and row.place in backlogs:
                backlogs[row.place].waiting += 1
        by_place: dict[Place, list[LaneJob]] = {place: [] for place in backlogs}
        for row in rows.values():
            by_place.setdefault(row.place, []).append(row.job)
        since: dict[Place, float] = {(lane.model, lane.priority): lane.since for lane in parse_pauses(pauses)}
        lanes = tuple(
            _lane(place, backlogs.get(place, _Backlog()).waiting, jobs, since.get(place))
            for place, jobs in by_place.items()
        )
        return lanes, _number(counters[0]), running

    async def _ids(self) -> tuple[list[str], list[str], Any, int, Any]:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hkeys(self._keys.models)
        pipeline.zrange(self._keys.leases, 0, _RUNNING - 1)
        pipeline.hmget(self._keys.counters, "queued")
        pipeline.zcard(self._keys.leases)
        pipeline.hgetall(self._keys.pauses)
        models, running_ids, counters, running, pauses = await pipeline.execute()
        return sorted(_words(models)), _words(running_ids), counters, running, pauses

    async def _backlogs(self, models: Sequence[str]) -> tuple[dict[Place, _Backlog], list[str]]:
        """Jobs of each lane that wait for the turns of their tenants; and those that come back to their models."""
        keys, places = self._keys, [(model, priority) for model in models for priority in _CLASSES]
        pipeline = self._redis.pipeline(transaction=False)
        for model in models:
            for name in (keys.backlog("resume", model), keys.backlog("solo", model), keys.bound(model)):
                pipeline.zrange(name, 0, _RETURNING - 1)
        for model, priority in places:
            pipeline.zrange(keys.turns(priority, model), 0, _TENANTS - 1)
            pipeline.zcard(keys.turns(priority, model))
        for model in models:
            pipeline.zrange(keys.parked(model), 0, _TENANTS - 1)
        replies = iter(await pipeline.execute() if models else [])
        returning = [job_id for _ in range(3 * len(models)) for job_id in _words(next(replies))]
        tenants = {place: (_words(next(replies)), next(replies)) for place in places}
        for model in models:
            for kind, tenant in parked_members(next(replies)):
                for place in ((model, priority) for priority in _CLASSES if priority == kind):
                    tenants[place] = ([*tenants[place][0], tenant], tenants[place][1] + 1)
        pipeline = self._redis.pipeline(transaction=False)
        for (model, priority), (names, _) in tenants.items():
            each = max(1, JOBS_LISTED // max(1, len(names)))
            for name in names:
                backlog = keys.backlog(priority, f"{name}:{model}")
                pipeline.zcard(backlog)
                pipeline.zrange(backlog, 0, each - 1)
        replies = iter(await pipeline.execute() if tenants else [])
        found: dict[Place, _Backlog] = {}
        for place, (names, count) in tenants.items():
            backlog_of = found[place] = _Backlog(max(0, count - len(names)))
            for _ in names:
                backlog_of.waiting += next(replies)
                backlog_of.ids += _words(next(replies))
        return found, list(dict.fromkeys(returning))

    async def _rows(self, running: Sequence[str], waiting: Sequence[str]) -> dict[str, _Row]:
        """By id, those that run first."""
        asked = [*running, *(job_id for job_id in waiting if job_id not in self._waiting)]
        pipeline, known = self._redis.pipeline(transaction=False), []
        for job_id in asked:
            try:
                pipeline.hmget(locate(job_id).job(job_id), _FIELDS)
            except JobNotFound:  # something else wrote into the index
                continue
            known.append(job_id)
        replies = await pipeline.execute(raise_on_error=False) if known else []
        read = {job_id: row for job_id, values in zip(known, replies, strict=True) if (row := _row(job_id, values))}
        is_running = {job_id for job_id, row in read.items() if row.job.status is JobStatus.RUNNING}
        self._waiting = {
            job_id: row
            for job_id in waiting
            if job_id not in is_running and (row := read.get(job_id) or self._waiting.get(job_id)) is not None
        }
        return {**{job_id: read[job_id] for job_id in asked if job_id in is_running}, **self._waiting}


def _lane(place: Place, waiting: int, jobs: Sequence[LaneJob], paused_since: float | None) -> Lane:
    runs = [job for job in jobs if job.status is JobStatus.RUNNING]
    waits = sorted((job for job in jobs if job.status is not JobStatus.RUNNING), key=lambda job: job.created_at)
    waiting = max(waiting, len(waits))
    shown = [*runs, *waits][:JOBS_LISTED]
    mean = sum(job.weight - job.tokens for job in waits) / max(1, len(waits))
    return Lane(
        model=place[0],
        priority=place[1],
        waiting=waiting,
        running=len(runs),
        backlog_tokens=round(mean * waiting),
        waiting_since=waits[0].created_at if waits else None,
        unlisted=len(runs) + waiting - len(shown),
        jobs=tuple(shown),
        paused_since=paused_since,
    )


def _row(job_id: str, values: Any) -> _Row | None:
    """None for what is gone, has ended, or is damaged."""
    if isinstance(values, Exception):
        return None
    row: Mapping[JobHash, bytes | None] = dict(zip(_FIELDS, values, strict=True))
    try:
        text = {name: value.decode() for name, value in row.items() if value is not None}
        job = LaneJob(
            id=job_id,
            tenant=text[JobHash.TENANT],
            status=JobStatus(text[JobHash.STATUS]),
            created_at=int(text[JobHash.CREATED_MS]) / 1000,
            tokens=int(text[JobHash.TOKENS]),
            weight=int(float(text[JobHash.COST])),
            attempts=int(text[JobHash.ATTEMPTS]),
            started_at=int(text[JobHash.STARTED_MS]) / 1000 if JobHash.STARTED_MS in text else None,
            worker=text.get(JobHash.WORKER) or None,
        )
        place = (text[JobHash.MODEL], text[JobHash.PRIORITY])
    except (KeyError, ValueError, OverflowError):
        return None
    return None if job.status.is_terminal or place[1] not in _CLASSES else _Row(place, job)


def _words(names: Iterable[bytes]) -> list[str]:
    return [name.decode(errors="replace") for name in names]


def _number(data: bytes | None) -> int:
    return int(data) if data is not None and data.isdigit() else 0
