"""Tokens on their way into the streams: in order, in batches, one pipeline at a time, again until stored."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis.asyncio
from redis import exceptions
from redis.exceptions import RedisError

from octavo.queue import wire
from octavo.queue.calls import Call, run_many
from octavo.queue.connection import Line, is_denied, is_final
from octavo.queue.protocol import MAX_APPENDS, Append, AppendReply, Cell, FinishReply
from octavo_worker.agent.jobs import ActiveJob

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_INTERVAL_S = 0.01
_UNWELCOME = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError)


class Publisher:
    """Sends what jobs have generated and ends them.

    Tokens that arrive while a pipeline is under way leave with the next one. A slow server thus makes longer chunks,
    and a server that is away costs the tokens in memory, nothing else: jobs remember what is not known to be stored.
    A job's first tokens and its end leave at once. Between them tokens 10 ms apart look the same to a reader, so
    several steps of a very fast engine share a pipeline.
    `stop(job, reason)` is called when the server wants a job stopped, `gone(job, state)` when a job left: with
    state ok because its last entry is stored, with fenced because it belongs to another worker by now, with refused
    because the server will never take what it has. `ended(call)` is called when a call has ended a job.
    """

    def __init__(
        self,
        connection: redis.asyncio.Redis,
        cell: Cell,
        *,
        stop: Callable[[ActiveJob, str], None],
        gone: Callable[[ActiveJob, str], None],
        ended: Callable[[Call[FinishReply]], None],
    ) -> None:
        self._line = Line(connection)
        self._cell = cell
        self._stop = stop
        self._gone = gone
        self._ended = ended
        self._waiting: dict[str, ActiveJob] = {}
        self._apart: set[str] = set()  # jobs of a batch that was refused: each goes alone until one is found guilty
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
        self._apart.discard(job.request_id)

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
        try:
            await self._run()
        finally:
            await self._line.close()

    async def _run(self) -> None:
        pause = 0.0
        sent_at = 0.0
        trouble: Exception | None = None
        while True:
            await self._news.wait()
            await self._wait(sent_at + _INTERVAL_S - time.monotonic())
            await self._allowed.wait()
            self._news.clear()
            self._urgent.clear()
            sent_at = time.monotonic()
            jobs, self._waiting = list(self._waiting.values()), {}
            before = trouble
            try:
                trouble = await self._send(jobs)
            except (RedisError, OSError) as error:
                trouble = error
                self._again(jobs)
            if type(trouble) is not type(before):
                _report(trouble)
            if trouble is not None:
                pause = min(max(_FIRST_PAUSE_S, 2 * pause), _LONGEST_PAUSE_S)
                await asyncio.sleep(pause)
            else:
                pause = 0.0
            if not self._waiting:
                self._idle.set()

    async def _wait(self, seconds: float) -> None:
        """So long at most, and not if something is urgent."""
        if seconds > 0 and not self._urgent.is_set():
            timer = asyncio.get_running_loop().call_later(seconds, self._urgent.set)
            try:
                await self._urgent.wait()
            finally:
                timer.cancel()

    async def _send(self, jobs: Sequence[ActiveJob]) -> Exception | None:
        """One round trip. What stands in the way if the server took less than all of it; that is sent again."""
        batches = self._batches(jobs)
        ending = [job for job in jobs if job.is_over]
        calls: list[Call[Any]] = [self._cell.append([item for _, item in batch]) for batch in batches]
        calls += [self._finish(job) for job in ending]
        if not calls:
            return None
        replies = await run_many(self._line, calls)
        trouble: Exception | None = None
        for batch, reply in zip(batches, replies, strict=False):
            if isinstance(reply, Exception):
                trouble = self._refused(list(dict.fromkeys(job for job, _ in batch)), reply) or trouble
            else:
                for (job, _), answer in zip(batch, reply, strict=True):
                    self._appended(job, answer)
        for job, call, reply in zip(ending, calls[len(batches) :], replies[len(batches) :], strict=True):
            if isinstance(reply, Exception):
                trouble = self._refused([job], reply) or trouble
            else:
                if reply:
                    self._ended(call)
                self._finished(job, reply)
        return trouble

    def _batches(self, jobs: Sequence[ActiveJob]) -> list[list[tuple[ActiveJob, Append]]]:
        together = [(job, item) for job in jobs if job.request_id not in self._apart for item in job.unsent()]
        apart = [[(job, item) for item in job.unsent()] for job in jobs if job.request_id in self._apart]
        return [
            items[at : at + MAX_APPENDS] for items in (together, *apart) for at in range(0, len(items), MAX_APPENDS)
        ]

    def _refused(self, jobs: Sequence[ActiveJob], error: Exception) -> Exception | None:
        """Send these again, unless one job is at fault and the error is final. The error if it may pass."""
        if is_final(error) and len(jobs) == 1:
            log.error("the server cannot store job %s: %s", jobs[0].claim.job_id, error)
            self._gone(jobs[0], "refused")
            return None
        if is_final(error):
            self._apart.update(job.request_id for job in jobs)
        self._again(jobs)
        return None if is_final(error) else error

    def _finish(self, job: ActiveJob) -> Call[FinishReply]:
        terminal = job.terminal()
        result = wire.encode_result(terminal, job.result_chunks()) if job.is_restored else b""
        if len(result) > wire.MAX_BYTES:
            result = b""  # beyond what readers take: the stream has to do
        return self._cell.finish(job.claim.job_id, job.claim.token, terminal, result, is_cut=job.is_cut)

    def _appended(self, job: ActiveJob, reply: AppendReply) -> None:
        self._apart.discard(job.request_id)
        match reply.state:
            case "fenced":
                if not job.is_over:  # else the reply to its end says more: that may have been stored before
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


def _report(trouble: Exception | None) -> None:
    """Once when it begins, and when it is over."""
    if trouble is None:
        log.info("server is back, everything is being sent")
    elif isinstance(trouble, _UNWELCOME) or is_denied(trouble):
        log.error(
            "the server refuses this worker (%s), tokens wait in memory: check user and password in --redis-url; "
            "`octavo doctor` says what that user may not do",
            trouble,
        )
    elif isinstance(trouble, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        log.warning("server lost, tokens wait in memory: %s", type(trouble).__name__)
    else:
        log.error("the server takes no tokens for now, they wait in memory: %s", trouble)
