"""What a client has submitted lately, until the server can have written it down.

A server whose append-only file is synced once a second forgets the last seconds if its machine loses power, or if it is
killed while the disk keeps it waiting. So a client keeps what was accepted for a while and listens to the server
meanwhile: when their connection is lost, it submits what it keeps again, under the same ids. Of what the server still
knows, that changes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import redis.asyncio

from octavo.connection import LOST, answered
from octavo.errors import OctavoError
from octavo.protocol import Call, Enqueued, run, run_many

_WRITTEN_S = 5.0  # a busy disk delays a write by two seconds at most, and its sync comes within another
_PING_S = 1.0
_PAUSE_S = 0.2
_BATCH = 64


@dataclass
class _Submission:
    call: Call[Enqueued]
    accepted_at: float
    sent_at: float  # for the last time


class Submissions:
    """`commands` is the client's pool, `listener` a client whose connections never retry. `lifetime_s`: a job that was
    accepted so long ago may have ended and expired, and is not submitted again."""

    def __init__(self, commands: redis.asyncio.Redis, listener: redis.asyncio.Redis, lifetime_s: float) -> None:
        self._commands = commands
        self._listener = listener
        self._lifetime_s = lifetime_s
        self._kept: dict[str, _Submission] = {}  # by job id
        self._watching: asyncio.Task[None] | None = None

    def keep(self, job_id: str, call: Call[Enqueued]) -> None:
        """`call` has just made the job."""
        now = asyncio.get_running_loop().time()
        self._kept[job_id] = _Submission(call, now, now)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def forget(self, job_id: str) -> None:
        """Nobody wants the job any more."""
        self._kept.pop(job_id, None)

    async def restore(self, job_id: str) -> bool:
        """The server does not know a job: whether it does now, because it was one of these."""
        submission = self._kept.get(job_id)
        if submission is None or self._may_have_expired(submission):
            return False
        try:
            enqueued = await run(self._commands, submission.call)
        except OctavoError:  # its place may have been taken: it is as if it had never been
            return False
        return enqueued.job_id == job_id

    async def close(self) -> None:
        """What is still kept is nobody's concern from here on."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        lost = False
        while self._kept:
            try:
                async with self._listener.client() as connection:  # one, so that its loss shows
                    while self._kept:
                        if lost:
                            await self._submit_again()
                        lost = False
                        asked_at = asyncio.get_running_loop().time()
                        async with answered():
                            await connection.ping()
                        self._forget_before(asked_at - _WRITTEN_S)
                        await asyncio.sleep(_PING_S)
            except LOST:
                lost = True
                await asyncio.sleep(_PAUSE_S)

    async def _submit_again(self) -> None:
        now = asyncio.get_running_loop().time()
        kept = [submission for submission in self._kept.values() if not self._may_have_expired(submission)]
        for start in range(0, len(kept), _BATCH):
            batch = kept[start : start + _BATCH]
            await run_many(self._commands, [submission.call for submission in batch])
            for submission in batch:
                submission.sent_at = now

    def _forget_before(self, moment: float) -> None:
        for job_id in [job_id for job_id, submission in self._kept.items() if submission.sent_at <= moment]:
            del self._kept[job_id]

    def _may_have_expired(self, submission: _Submission) -> bool:
        return asyncio.get_running_loop().time() - submission.accepted_at >= self._lifetime_s
