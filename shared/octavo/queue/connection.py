"""Connections to the server, with one set of options."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import redis
import redis.asyncio
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from octavo.queue import local
from octavo.queue.address import UNIX, parse_address, shown
from octavo.queue.links import async_link, sync_link
from octavo.queue.routes import Route
from octavo.terms.errors import QueueFull, ServerUnavailable

# What a lost connection raises, or a server that does not answer.
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)

_CODE = re.compile(r"[A-Z]{3,} ")  # of an error that is not the script's own; redis-py takes ERR away
_DENIED_IN_SCRIPT = re.compile(r"The user executing the script|ACL failure in script")
_ADVICE = {
    exceptions.AuthenticationError: "check the user and the password of its address",
    exceptions.ReadOnlyError: "it is a replica; use the primary's address, or one with redis+sentinel://",
    exceptions.AskError: "it is one node of a cluster; write redis+cluster:// in its address",
    exceptions.ClusterDownError: "its cluster is not complete; see `CLUSTER INFO`",
    exceptions.OutOfMemoryError: "its memory is full; try again later, or raise its maxmemory",
}
_ADVICE_BY_CODE = {
    "MISCONF": "it cannot write to its disk; make room there",
    "NOREPLICAS": "it wants more replicas than are there; start them, or lower min-replicas-to-write",
}

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
}
_TCP_OPTIONS: dict[str, Any] = {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
# With a socket timeout redis-py sends through asyncio.wait_for, which on Python 3.11 can swallow the cancellation of
# the task (python/cpython#86296). Hence none, and `answered` around what waits for a reply.
_ASYNC_OPTIONS: dict[str, Any] = {"socket_timeout": None}
_OF_POOLS = ("max_connections", "timeout")


def connect(url: str) -> redis.asyncio.Redis:
    """An asynchronous pool of at most 16 connections; callers wait for a free one. Connects on first use. Raises
    ServerUnavailable if `url` is no address."""
    route = Route(parse_address(url))
    pool = redis.asyncio.BlockingConnectionPool(
        connection_class=async_link(route),
        retry=AsyncRetry(ExponentialBackoff(0.5, 0.05), _RETRIES),
        **{"max_connections": _POOL, "timeout": ANSWER_TIMEOUT_S, **_options(route), **_ASYNC_OPTIONS},
    )
    return redis.asyncio.Redis.from_pool(pool)


def connect_sync(url: str, *, answer_s: float = ANSWER_TIMEOUT_S, retries: int = _RETRIES) -> redis.Redis:
    """A synchronous pool of at most 16 connections. Connects on first use. Raises ServerUnavailable as `connect`."""
    route = Route(parse_address(url))
    options = _options(route)
    options["socket_connect_timeout"] = min(options["socket_connect_timeout"], answer_s)
    pool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]
        connection_class=sync_link(route),
        retry=Retry(ExponentialBackoff(0.5, 0.05), retries),
        **{"max_connections": _POOL, "timeout": ANSWER_TIMEOUT_S, **options, "socket_timeout": answer_s},
    )
    return redis.Redis.from_pool(pool)


def connect_listener(commands: redis.asyncio.Redis) -> redis.asyncio.Redis:
    """To where `commands` goes, for pub/sub: a lost connection is an error at once, because what was published
    meanwhile is lost too."""
    route: Route = commands.connection_pool.connection_kwargs["route"]
    options = {name: value for name, value in _options(route).items() if name not in _OF_POOLS}
    pool = redis.asyncio.ConnectionPool(
        connection_class=async_link(route), retry=AsyncRetry(NoBackoff(), 0), **options, **_ASYNC_OPTIONS
    )
    return redis.asyncio.Redis.from_pool(pool)


def _options(route: Route) -> dict[str, Any]:
    given = {name: value for name, value in route.address.options.items() if not name.startswith("sentinel_")}
    if route.address.scheme == UNIX:
        return {**_OPTIONS, "path": route.address.path, **given, "route": route}
    (host, port), *_ = route.address.nodes
    return {**_OPTIONS, **_TCP_OPTIONS, "host": host, "port": port, **given, "route": route}


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


def is_denied(error: Exception) -> bool:
    """True if the server's user may not do this, itself or in a script."""
    return isinstance(error, exceptions.NoPermissionError) or (
        type(error) is redis.ResponseError and _DENIED_IN_SCRIPT.match(str(error)) is not None
    )


def is_final(error: Exception) -> bool:
    """True if the server would give the same answer for ever: a script or a command that failed on what it found. All
    else passes or can be mended: a lost connection, a full disk, a wrong password, a user that may too little."""
    if type(error) is not redis.ResponseError or is_denied(error):
        return False
    text = str(error)
    return text.startswith("WRONGTYPE") or ("user_script" in text and not _CODE.match(text))


def outage(url: str, error: Exception) -> str:
    """Why the server at `url` does not serve, and what to do about it."""
    if isinstance(error, redis.BusyLoadingError):
        return f"the Redis server at {shown(url)} is still loading what it holds: it serves again in a while"
    if isinstance(error, redis.ResponseError | exceptions.AuthenticationError):
        return refusal(url, error)
    return (
        f"cannot reach the Redis server at {shown(url)} ({error}): start one with `octavo up`, or point REDIS_URL "
        "at the one to use"
    )


def refusal(url: str, error: Exception) -> str:
    """Why a server that answers does not do it, and what to do about it."""
    return f"the Redis server at {shown(url)} refuses this ({error}): {_advice(error)}"


@contextmanager
def errors_of(url: str, on_loss: Callable[[], None]) -> Iterator[None]:
    """Raises errors of this package in the place of those of redis-py. `on_loss` is called first when the server was
    lost."""
    try:
        yield
    except LOST as error:
        on_loss()
        raise ServerUnavailable(outage(url, error)) from error
    except exceptions.OutOfMemoryError as error:
        raise QueueFull("the server's memory is full: try again later, or raise its maxmemory") from error
    except exceptions.RedisError as error:
        raise ServerUnavailable(refusal(url, error)) from error


def _advice(error: Exception) -> str:
    if is_denied(error):
        return "its user lacks a permission; `octavo doctor` says which, docs/protocol.md has a rule for each role"
    for kind, advice in _ADVICE.items():
        if isinstance(error, kind):
            return advice
    code = str(error).partition(" ")[0]
    return _ADVICE_BY_CODE.get(code, "see what the server says, and its log")


def default_url() -> str:
    """`REDIS_URL`, else the service that runs on this machine, else the usual address."""
    if url := os.environ.get("REDIS_URL"):
        return url
    service = local.running()
    return service.redis_url if service else DEFAULT_URL
