"""Look-ups of API keys: all that are asked for at one time go in one round trip, on a connection of their own."""

from __future__ import annotations

import asyncio
from itertools import islice

import redis.asyncio

from octavo.queue.calls import run_many
from octavo.queue.connection import Line
from octavo.queue.tenants.keys import Looked, TenantCell

_AT_ONCE = 256


class KeyLooks:
    """One event loop's look-ups. A pool and its pipelines would cost each as much as the look-up itself."""

    def __init__(self, pool: redis.asyncio.Redis, cell: TenantCell) -> None:
        """At the server that `pool` is connected to."""
        self._line = Line(pool)
        self._cell = cell
        self._asked: dict[str, asyncio.Future[Looked | None]] = {}
        self._answering: asyncio.Task[None] | None = None

    async def look(self, key_id: str) -> Looked | None:
        """A key as the server has it after this call. Raises what redis-py raises."""
        future = self._asked.get(key_id)
        if future is None:
            future = self._asked[key_id] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # all that asked may be gone
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer())
        return await asyncio.shield(future)

    async def _answer(self) -> None:
        """Answers until nothing is asked for. What is asked for meanwhile is a question of its own: no answer may be
        older than its question."""
        while self._asked:
            asked = dict(islice(self._asked.items(), _AT_ONCE))
            for key_id in asked:
                del self._asked[key_id]
            outcomes: list[Looked | Exception | None]
            try:
                outcomes = [*await run_many(self._line, [self._cell.look(key_id) for key_id in asked])]
            except Exception as error:
                outcomes = [error] * len(asked)
            except asyncio.CancelledError:
                for future in asked.values():
                    future.cancel()
                raise
            for future, outcome in zip(asked.values(), outcomes, strict=True):
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    async def close(self) -> None:
        """Disconnect. What is not answered yet never is."""
        if self._answering is not None:
            self._answering.cancel()
        for future in self._asked.values():
            future.cancel()
        await self._line.close()
