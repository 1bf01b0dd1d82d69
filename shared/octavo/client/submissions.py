"""Recent submissions of a client, kept until the server can have written them down.

A server whose append-only file is synced once a second forgets the last seconds if its machine loses power, or if it is
killed while the disk keeps it waiting. So a client keeps what was accepted for a while and listens to the server
meanwhile: when their connection is lost, it submits what it keeps again, under the same ids. Of what the server still
knows, that changes nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
import redis.asyncio

from octavo.queue.calls import Call, run, run_many
from octavo.queue.connection import answered
from octavo.queue.protocol import Cell, Enqueued
from octavo.terms.errors import JobNotFound, OctavoError
from octavo.terms.messages import JobStatus

_WRITTEN_S = 5.0  # a busy disk delays a write by two seconds at most, and its sync comes within another
_PATIENCE_S = 60.0  # how long one is kept that a server which came back refuses: it may not know the model yet
_OTHERS_S = 5.0  # for so long after an outage a job may be missing that another client has submitted
_PING_S = 1.0
_PAUSE_S = 0.2
_BATCH = 64

T = TypeVar("T")


@dataclass
class _Submission:
    """Requests for one job: to make it, to cancel it, or both."""

    accepted_at: float
    keep_until: float
    doubted: bool  # the server may have forgotten it
    enqueue: Call[Enqueued] | None = None
    cancel: Call[JobStatus | None] | None = None

    def again(self, cell: Cell) -> list[Call[Any]]:
        """Calls that make a server know of the job that does not."""
        made = [] if self.enqueue is None else [cell.enqueue_again(self.enqueue)]
        return made if self.cancel is None else [*made, self.cancel]


class Submissions:
    """`commands` is the client's pool, `listener` a client whose connections never retry. `lifetime_s`: a job that was
    accepted so long ago may have ended and expired, and is not submitted again."""

    def __init__(
        self, commands: redis.asyncio.Redis, listener: redis.asyncio.Redis, cell: Cell, lifetime_s: float
    ) -> None:
        self._cell = cell
        self._outage_at = -math.inf
        self._commands = commands
        self._listener = listener
        self._lifetime_s = lifetime_s
        self._kept: dict[str, _Submission] = {}  # by job id
        self._watching: asyncio.Task[None] | None = None
        self._connected = False
        self._wanted = asyncio.Event()

    def begin(self) -> None:
        """Jobs are about to be submitted: from now on, or soon, the loss of the connection shows."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    def keep(self, job_id: str, call: Call[Enqueued]) -> None:
        """`call` has just made the job."""
        self._noted(job_id).enqueue = call

    def cancelled(self, job_id: str, call: Call[JobStatus | None], status: JobStatus) -> None:
        """`call` has asked for the job's end, and found it with this status. One that had ended stays what it was."""
        if not status.is_terminal or status is JobStatus.CANCELLED:
            self._noted(job_id).cancel = call

    def _noted(self, job_id: str) -> _Submission:
        now = asyncio.get_running_loop().time()
        submission = self._kept.setdefault(job_id, _Submission(now, now, doubted=False))
        submission.keep_until = max(submission.keep_until, now + _WRITTEN_S)
        submission.doubted = submission.doubted or not self._connected
        self._wanted.set()
        return submission

    def note_outage(self) -> None:
        """The server was away just now: what it has forgotten is being submitted again, here or by other clients."""
        self._outage_at = asyncio.get_running_loop().time()

    async def restore(self, job_id: str) -> bool:
        """The server does not know a job: whether it is worth asking again, because it was one of these, or of another
        client that may need a moment more."""
        while (submission := self._kept.get(job_id)) is not None and submission.enqueue is not None:
            if self._may_have_expired(submission):
                return False
            try:
                made, *_ = [await run(self._commands, call) for call in submission.again(self._cell)]
                return bool(made.job_id == job_id)
            except OctavoError:
                await asyncio.sleep(_PAUSE_S)
        if asyncio.get_running_loop().time() - self._outage_at >= _OTHERS_S:
            return False
        await asyncio.sleep(_PAUSE_S)
        return True

    async def found(self, job_id: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The result of `ask`, also for a job that the server has forgotten."""
        while True:
            try:
                return await ask()
            except JobNotFound as error:
                if error.code != JobNotFound.code or not await self.restore(job_id):
                    raise

    async def close(self) -> None:
        """Stop watching. Jobs that are still kept are not submitted again."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                async with self._listener.client() as connection:  # one, so that its loss shows
                    while True:
                        asked_at = asyncio.get_running_loop().time()
                        async with answered():
                            await connection.ping()
                        self._connected = True
                        await self._submit_again()
                        self._forget_until(asked_at)
                        await self._rest()
            except (redis.RedisError, OSError):
                self._doubt()
                await asyncio.sleep(_PAUSE_S)

    async def _rest(self) -> None:
        if self._kept:
            await asyncio.sleep(_PING_S)
        else:
            self._wanted.clear()
            await self._wanted.wait()

    def _doubt(self) -> None:
        self._connected = False
        self.note_outage()
        now = asyncio.get_running_loop().time()
        for submission in self._kept.values():
            submission.doubted, submission.keep_until = True, now + _PATIENCE_S

    async def _submit_again(self) -> None:
        """Submits again what the server may have forgotten; once more next time if the server refuses it now."""
        doubted = [one for one in self._kept.values() if one.doubted and not self._may_have_expired(one)]
        for start in range(0, len(doubted), _BATCH):
            batch = [(one, call) for one in doubted[start : start + _BATCH] for call in one.again(self._cell)]
            outcomes = await run_many(self._commands, [call for _, call in batch])
            now = asyncio.get_running_loop().time()
            for one, _ in batch:
                one.doubted, one.keep_until = False, now + _WRITTEN_S
            for (one, _), outcome in zip(batch, outcomes, strict=True):
                if outcome is None or isinstance(outcome, Exception):  # of a cancellation: no such job yet
                    one.doubted, one.keep_until = True, one.accepted_at + _PATIENCE_S

    def _forget_until(self, moment: float) -> None:
        for job_id in [job_id for job_id, one in self._kept.items() if one.keep_until <= moment]:
            del self._kept[job_id]

    def _may_have_expired(self, submission: _Submission) -> bool:
        return asyncio.get_running_loop().time() - submission.accepted_at >= self._lifetime_s
