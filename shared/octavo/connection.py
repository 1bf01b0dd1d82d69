"""Connections to the server, with one set of options."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from octavo import local

# What a lost connection raises, or a server that does not answer.
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)

DEFAULT_URL = "redis://localhost:6379"
ANSWER_TIMEOUT_S = 10.0  # above every blocking command that octavo sends
_POOL = 16
_RETRIES = 2  # every script is idempotent, so a call with an unknown outcome may be sent again
_KEEPALIVE = {  # seconds, seconds, probes: a peer that vanished is noticed within about 20 s
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "socket_connect_timeout": 3.0,
    "socket_keepalive": True,
    "socket_keepalive_options": _KEEPALIVE,
}
# With a socket timeout redis-py sends through asyncio.wait_for, which on Python 3.11 can swallow the cancellation of
# the task (python/cpython#86296). Hence none, and `answered` around what waits for a reply.
_ASYNC_OPTIONS: dict[str, Any] = {**_OPTIONS, "socket_timeout": None}


def connect(url: str) -> redis.asyncio.Redis:
    """An asynchronous pool of at most 16 connections; callers wait for a free one. Connects on first use."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=_POOL,
        timeout=ANSWER_TIMEOUT_S,
        retry=AsyncRetry(ExponentialBackoff(0.5, 0.05), _RETRIES),
        **_ASYNC_OPTIONS,
    )
    return redis.asyncio.Redis.from_pool(pool)


def connect_sync(url: str) -> redis.Redis:
    """A synchronous pool of at most 16 connections. Connects on first use."""
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=_POOL,
        timeout=ANSWER_TIMEOUT_S,
        retry=Retry(ExponentialBackoff(0.5, 0.05), _RETRIES),
        socket_timeout=ANSWER_TIMEOUT_S,
        **_OPTIONS,
    )
    return redis.Redis.from_pool(pool)


def connect_listener(url: str) -> redis.asyncio.Redis:
    """For pub/sub: a lost connection is an error at once, because what was published meanwhile is lost too."""
    return redis.asyncio.Redis.from_url(url, retry=AsyncRetry(NoBackoff(), 0), **_ASYNC_OPTIONS)


class Line:
    """A dedicated connection for one task that calls without end: a pool, its locks and a pipeline's bookkeeping cost
    as much as the call itself. Connects on first use, and again when it was lost. Calls are repeated like a pool's.
    """

    def __init__(self, pool: redis.asyncio.Redis) -> None:
        """To the server that `pool` is connected to."""
        self._connection: Any = pool.connection_pool.make_connection()  # type: ignore[no-untyped-call]

    async def exchange(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies to `commands`, sent at once. An error of one is the exception in its place; a lost connection
        raises redis-py's errors."""
        connection = self._connection
        return await connection.retry.call_with_retry(  # type: ignore[no-any-return]
            lambda: self._once(commands), lambda error: connection.disconnect(nowait=True)
        )

    async def _once(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Cancelled or failed half-way, redis-py drops the connection, so no call reads the replies of another."""
        connection = self._connection
        await connection.send_packed_command(connection.pack_commands(commands))
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except redis.ResponseError as error:
                replies.append(error)
        return replies

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


@asynccontextmanager
async def answered(seconds: float = ANSWER_TIMEOUT_S) -> AsyncIterator[None]:
    """Raises redis-py's TimeoutError if what is awaited inside takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise redis.TimeoutError(f"the server did not answer within {seconds:g} s") from error


def is_final(error: Exception) -> bool:
    """Whether the server would give the same answer for ever: a script or a command that failed on what it found. All
    else passes or can be mended: a lost connection, a full disk, a wrong password."""
    return type(error) is redis.ResponseError and ("user_script" in str(error) or str(error).startswith("WRONGTYPE"))


def outage(url: str, error: Exception) -> str:
    """Why the server at `url` does not serve, and what to do about it."""
    if isinstance(error, redis.BusyLoadingError):
        return f"the Redis server at {redacted(url)} is still loading what it holds: it serves again in a while"
    return (
        f"cannot reach the Redis server at {redacted(url)} ({error}): start one with `octavo up`, or point REDIS_URL "
        "at the one to use"
    )


def default_url() -> str:
    """`REDIS_URL`, else the service that runs on this machine, else the usual address."""
    if url := os.environ.get("REDIS_URL"):
        return url
    service = local.running()
    return service.redis_url if service else DEFAULT_URL


def redacted(url: str) -> str:
    """The address without its credentials, fit for messages and logs."""
    return re.sub(r"//[^@/]*@", "//***@", url)
