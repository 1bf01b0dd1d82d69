"""A connection to the queue for calls and queries of any kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Self, TypeVar

import redis.asyncio

from octavo.queue.calls import Call, run
from octavo.queue.connection import answered, connect, default_url, errors_of

T = TypeVar("T")


class QueueConnection:
    """One event loop's connections. Nothing is sent before the first call."""

    def __init__(self, url: str | None = None) -> None:
        self._url = url or default_url()
        self.redis: redis.asyncio.Redis = connect(self._url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect. All that is in the queue goes on."""
        await self.redis.aclose()

    async def run(self, call: Call[T]) -> T:
        """Run one call. Raises what its reply raises, too."""
        with self.errors():
            return await run(self.redis, call)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raises errors of this package in the place of those of redis-py."""
        with errors_of(self._url, lambda: None):
            yield

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[redis.asyncio.Redis]:
        """The connection, for queries."""
        with self.errors():
            async with answered():
                yield self.redis
