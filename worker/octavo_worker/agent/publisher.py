"""Tokens on their way into the streams: in order, in batches, one pipeline at a time, again until stored."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from octavo import wire
from octavo.protocol import MAX_APPENDS, AppendReply, Call, Cell, FinishReply, run_many
from octavo_worker.agent.jobs import ActiveJob

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_INTERVAL_S = 0.01


class Publisher:
    """Sends what jobs have generated and ends them.

    Whatever arrives while a pipeline is under way leaves with the next one, so a slow server makes longer chunks and
    a server that is away costs the tokens in memory, nothing else: jobs remember what is not known to be stored.
    A job's first tokens and its end leave at once; between them nobody can tell tokens that are 10 ms apart, so very
    fast engines have several steps share a pipeline.
    `stop(job, reason)` is called when the server wants a job stopped, `gone(job, state)` when a job left: with
    state ok because its last entry is stored, with fenced because it belongs to somebody else by now.
    """

    def __init__(
        self,
        connection: redis.asyncio.Redis,
        cell: Cell,
        *,
        stop: Callable[[ActiveJob, str], None],
        gone: Callable[[ActiveJob, str], None],
    ) -> None:
        self._connection = connection
        self._cell = cell
        self._stop = stop
        self._gone = gone
        self._waiting: dict[str, ActiveJob] = {}
        self._news = asyncio.Event()
        self._urgent = asyncio.Event()
        self._allowed = asyncio.Event()
        self._allowed.set()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, job: ActiveJob) -> None:
        """The job has something to send. Never blocks."""
        self._waiting[job.request_id] = job
        self._news.set()
        if job.stored == 0 or job.is_over:
            self._urgent.set()
        self._idle.clear()

    def discard(self, job: ActiveJob) -> None:
        """Send nothing more of this job."""
        self._waiting.pop(job.request_id, None)

    def hold(self) -> None:
        """Send nothing until `resume`: the leases may have run out."""
        self._allowed.clear()

    def resume(self) -> None:
        self._allowed.set()

    async def sent(self) -> None:
        """Wait until everything is stored."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send for ever."""
        pause = 0.0
        sent_at = 0.0
        while True:
            await self._news.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(sent_at + _INTERVAL_S - time.monotonic()):
                    await self._urgent.wait()
            await self._allowed.wait()
            self._news.clear()
            self._urgent.clear()
            sent_at = time.monotonic()
            jobs, self._waiting = list(self._waiting.values()), {}
            try:
                troubled = await self._send(jobs)
            except (RedisError, OSError) as error:
                if not pause:
                    log.warning("server lost, tokens wait in memory: %s", type(error).__name__)
                self._again(jobs)
                troubled = True
            else:
                if pause and not troubled:
                    log.info("server is back, everything is being sent")
            if troubled:
                pause = min(max(_FIRST_PAUSE_S, 2 * pause), _LONGEST_PAUSE_S)
                await asyncio.sleep(pause)
            else:
                pause = 0.0
            if not self._waiting:
                self._idle.set()

    async def _send(self, jobs: Sequence[ActiveJob]) -> bool:
        """One round trip. True if a script failed, so that its jobs have to be sent again after a pause."""
        by_token = {(job.claim.job_id, job.claim.token): job for job in jobs}
        items = [item for job in jobs for item in job.unsent()]
        batches = [items[at : at + MAX_APPENDS] for at in range(0, len(items), MAX_APPENDS)]
        ending = [job for job in jobs if job.is_over]
        calls: list[Call[Any]] = [self._cell.append(batch) for batch in batches]
        calls += [self._finish(job) for job in ending]
        if not calls:
            return False
        replies = await run_many(self._connection, calls)
        troubled = False
        for batch, reply in zip(batches, replies, strict=False):
            owners = [by_token[item.job_id, item.token] for item in batch]
            if isinstance(reply, Exception):
                troubled = True
                log.error("the server refused tokens, they are sent again: %s", reply)
                self._again(owners)
            else:
                for job, answer in zip(owners, reply, strict=True):
                    self._appended(job, answer)
        for job, reply in zip(ending, replies[len(batches) :], strict=True):
            if isinstance(reply, Exception):
                troubled = True
                log.error("the server refused the end of job %s, it is sent again: %s", job.claim.job_id, reply)
                self._again([job])
            else:
                self._finished(job, reply)
        return troubled

    def _finish(self, job: ActiveJob) -> Call[FinishReply]:
        terminal = job.terminal()
        result = wire.encode_result(terminal, job.result_chunks())
        return self._cell.finish(job.claim.job_id, job.claim.token, terminal, result)

    def _appended(self, job: ActiveJob, reply: AppendReply) -> None:
        match reply.state:
            case "fenced":
                self._gone(job, "fenced")
                return
            case "rewind":
                log.warning("job %s: the server is at token %d, sending from there", job.claim.job_id, reply.offset)
                self.add(job)
            case "cancel":
                self._stop(job, reply.reason or "cancelled")
        job.stored = reply.offset

    def _finished(self, job: ActiveJob, reply: FinishReply) -> None:
        if reply.state == "rewind":
            job.stored = reply.offset
            self.add(job)
        else:
            self._gone(job, reply.state)

    def _again(self, jobs: Sequence[ActiveJob]) -> None:
        for job in jobs:
            self.add(job)
