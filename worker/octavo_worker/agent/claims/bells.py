"""The bells that tell a worker of jobs, heard on a connection of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import redis.asyncio
from redis.exceptions import RedisError

from octavo.queue.connection import Line, answered

_WAIT_S = 2.0
_RETRY_S = 0.5


class Bells:
    """Listens to some bells at a time. One that rings is silent for all others: the worker that `heard` it claims, or
    leaves, which rings it again. The work may be what its own engine dropped.
    """

    def __init__(self, connection: redis.asyncio.Redis) -> None:
        self.heard = False  # perhaps: where listening was cut short, that is not known
        self._line = Line(connection)
        self._names: Sequence[str] = ()
        self._listening: asyncio.Task[bool] | None = None

    async def listen(self, names: Sequence[str], changed: asyncio.Event) -> bool:
        """Until one rings, or seconds have passed: True. Or until `changed` is set: False, and what was begun goes on
        with the next call."""
        if self._listening is not None and not set(names) <= set(self._names):
            await self._stop()
            return True
        if self._listening is None:
            self._names = names
            self._listening = asyncio.create_task(self._hear())
        change = asyncio.create_task(changed.wait())
        try:
            await asyncio.wait([self._listening, change], return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
        if not self._listening.done():
            return False
        self.heard = self._listening.result() or self.heard
        self._listening = None
        return True

    async def leave(self) -> None:
        """Listen no more. A bell that was heard, and that no claim has followed, rings again."""
        await self._stop()
        if self.heard:
            self.heard = False
            with contextlib.suppress(RedisError, OSError):
                await self._line.exchange([("RPUSH", bell, 1) for bell in self._names[:2]])

    async def close(self) -> None:
        """After `leave`."""
        await self._line.close()

    async def _stop(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._listening, self.heard = None, True

    async def _hear(self) -> bool:
        """True if a bell rang, and where that is not known."""
        try:
            async with answered():
                (rung,) = await self._line.exchange([("BLPOP", *self._names, _WAIT_S)])
            if isinstance(rung, Exception):
                raise rung
        except (RedisError, OSError):
            await asyncio.sleep(_RETRY_S)
            return True
        return rung is not None
