"""Questions to this one worker, asked directly and not through the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import redis.asyncio
from redis.exceptions import RedisError

from octavo.client.pins import PINS_CHANGED
from octavo.queue.connection import answered
from octavo.queue.keys import Keys
from octavo.queue.questions import MAP_QUESTION

log = logging.getLogger(__name__)

PATIENCE_S = 5.0  # below what the connection allows a blocking command
_LEAST_INTERVAL_S = 0.2  # however many ask, the engine is asked no more often
_ANSWER_TTL_S = 10
_RETRY_S = 1.0


Describe = Callable[[], Awaitable[bytes | None]]


class Inbox:
    """Answers questions about memory: the first of `answers` gives that to most, the second that to the question about
    all blocks, either None while there is no engine. Calls `pins_changed` when a message says so, and every few
    seconds in case the message was lost."""

    def __init__(
        self,
        connection: redis.asyncio.Redis,
        keys: Keys,
        worker_id: str,
        *,
        answers: tuple[Describe, Describe],
        pins_changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._name = keys.inbox(worker_id)
        self._describe, self._describe_blocks = answers
        self._pins_changed = pins_changed

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                asking = await self._wait()
                if not asking or PINS_CHANGED in asking:
                    await self._pins_changed()
                asking.discard(PINS_CHANGED)
                mapped = {asked for asked in asking if asked.startswith(MAP_QUESTION)}
                for asked, describe in ((mapped, self._describe_blocks), (asking - mapped, self._describe)):
                    if asked and (answer := await describe()) is not None:
                        await self._answer(asked, answer)
            except (RedisError, OSError) as error:
                log.debug("the inbox cannot be read: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_S)
            else:
                await asyncio.sleep(_LEAST_INTERVAL_S)

    async def _wait(self) -> set[str]:
        """The ids under which answers are awaited; one answer serves all that have asked. Empty after a while."""
        async with answered():
            first = await self._connection.blpop([self._name], timeout=PATIENCE_S)
            if first is None:
                return set()
            others = await self._connection.lpop(self._name, 100) or []
        return {asked.decode(errors="replace") for asked in (first[1], *others)}

    async def _answer(self, asking: set[str], answer: bytes) -> None:
        pipeline = self._connection.pipeline(transaction=False)
        for answer_id in asking:
            pipeline.rpush(self._keys.answer(answer_id), answer)
            pipeline.expire(self._keys.answer(answer_id), _ANSWER_TTL_S)
        await pipeline.execute()
