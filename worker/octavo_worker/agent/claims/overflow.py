"""Preempted jobs that other workers could go on with."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

import redis.asyncio
from redis.exceptions import RedisError

from octavo.queue.fleet import live_workers
from octavo.queue.keys import Keys
from octavo.terms.workers import WorkerInfo
from octavo_worker.agent.agent import Agent
from octavo_worker.agent.claims.memory import Memory, reusable
from octavo_worker.agent.jobs import ActiveJob

log = logging.getLogger(__name__)

PATIENCE_S = 5.0
_LOOK_S = 1.0


class Overflow:
    """Gives back what has waited for memory here for seconds, as much as other workers that serve the same have places
    for. That costs a job what it has computed, and happens once in `pause_s` at most: until heartbeats tell what became
    of it."""

    def __init__(
        self,
        connection: redis.asyncio.Redis,
        keys: Keys,
        agent: Agent,
        *,
        own: Callable[[], WorkerInfo],
        pause_s: float,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._agent = agent
        self._own = own
        self._pause_s = pause_s

    async def run(self) -> None:
        """For ever."""
        pause = _LOOK_S
        while True:
            await asyncio.sleep(pause)
            pause = self._pause_s if await self.look() else _LOOK_S

    async def look(self) -> int:
        """Give back what others can take. The number of jobs."""
        limits = self._agent.limits
        if limits is None or not (waiting := self._stranded()):
            return 0
        own = self._own()
        try:
            workers = await live_workers(self._connection, self._keys)
        except (RedisError, OSError):
            return 0
        others = [w for w in workers if w.id != own.id and (w.model, w.digest) == (own.model, own.digest)]
        leaving = _taken_by(others, waiting, Memory(limits))
        if leaving:
            log.info("%d preempted jobs find room at other workers", len(leaving))
            await self._agent.give_back(leaving)
        return len(leaving)

    def _stranded(self) -> list[ActiveJob]:
        """Jobs that were preempted long ago, the first one first. Not those of a class for which there is room: they
        come back by themselves."""
        latest, room = time.monotonic() - PATIENCE_S, self._agent.room()
        found = [(job.preempted_at or 0.0, job) for job in self._agent.preempted()]
        found.sort(key=lambda entry: entry[0])
        return [
            job
            for since, job in found
            if since <= latest and job.may_move and (room is None or room.of(job.rank).jobs <= 0)
        ]


def _taken_by(workers: Iterable[WorkerInfo], jobs: Iterable[ActiveJob], memory: Memory) -> list[ActiveJob]:
    """Jobs for which a worker has free rows and memory."""
    stats = [worker.stats for worker in workers if worker.stats.waiting == 0]
    places = [(s.most_rows(s.max_running) - s.running, reusable(s)) for s in stats]
    found = []
    for job in jobs:
        needed = memory.of(job).plus(memory.growth(job))
        for place, (rows, free) in enumerate(places):
            if rows >= job.open_sequences and memory.covers(free, needed):
                places[place] = rows - job.open_sequences, free.minus(needed)
                found.append(job)
                break
    return found
