"""redis-py's connections, made to follow a `Route`."""

from __future__ import annotations

import asyncio
from typing import Any

import redis
import redis.asyncio
from redis.asyncio import connection as asynchronous
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from octavo.queue.address import UNIX, Node
from octavo.queue.routes import Route, Search

_ASK_TIMEOUT_S = 3.0


class _Following:
    """The common part of both kinds. `node` is where the connection went."""

    def __init__(self, *, route: Route, **options: Any) -> None:
        super().__init__(**options)
        self.node: Node | None = None
        self._route = route

    def _go_to(self, node: Node) -> None:
        self.node = self.host, self.port = node


class _AsyncFollowing(_Following):
    async def _connect(self) -> None:
        if not self._route.is_fixed:
            self._go_to(await _find(self._route))
            self._route.connections.add(self)
        await super()._connect()  # type: ignore[misc]

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except redis.ResponseError as error:
            told = self._route.told(self.node, error)
            if told is error:
                raise
        if isinstance(told, redis.ConnectionError):
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
        raise told  # here, where it has no context that repeats a password

    def hang_up(self) -> None:
        """Safe while another task reads: it finds the connection lost."""
        if self._writer is not None:  # type: ignore[attr-defined]
            self._writer.close()  # type: ignore[attr-defined]


class _SyncFollowing(_Following):
    def _connect(self) -> Any:
        if not self._route.is_fixed:
            self._go_to(_find_sync(self._route))
        return super()._connect()  # type: ignore[misc]

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except redis.ResponseError as error:
            told = self._route.told(self.node, error)
            if told is error:
                raise
        if isinstance(told, redis.ConnectionError):
            self.disconnect()  # type: ignore[attr-defined]
        raise told


class _AsyncLink(_AsyncFollowing, asynchronous.Connection):
    pass


class _AsyncTlsLink(_AsyncFollowing, asynchronous.SSLConnection):
    pass


class _AsyncSocketLink(_AsyncFollowing, asynchronous.UnixDomainSocketConnection):
    pass


class _Link(_SyncFollowing, redis.Connection):
    pass


class _TlsLink(_SyncFollowing, redis.SSLConnection):
    pass


class _SocketLink(_SyncFollowing, redis.UnixDomainSocketConnection):
    pass


def async_link(route: Route) -> type[asynchronous.AbstractConnection]:
    """The class of connections for a route."""
    if route.address.scheme == UNIX:
        return _AsyncSocketLink
    return _AsyncTlsLink if route.address.has_tls else _AsyncLink


def sync_link(route: Route) -> type[redis.connection.AbstractConnection]:
    if route.address.scheme == UNIX:
        return _SocketLink
    return _TlsLink if route.address.has_tls else _Link


async def _find(route: Route) -> Node:
    """Asks one node after the other. Raises ConnectionError if none knows the primary."""
    search = Search(route)
    while (node := search.asking) is not None:
        kind = asynchronous.SSLConnection if route.address.has_tls else asynchronous.Connection
        link = kind(host=node[0], port=node[1], **_asking(route), retry=AsyncRetry(NoBackoff(), 0))
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                await link.connect()  # type: ignore[no-untyped-call]
                await link.send_command(*route.question)
                primary = search.heard(node, await link.read_response())
        except (redis.RedisError, OSError) as error:
            search.failed(node, error)
            continue
        finally:
            await link.disconnect(nowait=True)
        if primary is not None:
            route.follow(primary)
            return primary
    raise search.given_up()


def _find_sync(route: Route) -> Node:
    search = Search(route)
    while (node := search.asking) is not None:
        kind = redis.SSLConnection if route.address.has_tls else redis.Connection
        options = {**_asking(route), "socket_timeout": _ASK_TIMEOUT_S, "retry": Retry(NoBackoff(), 0)}
        link = kind(host=node[0], port=node[1], **options)
        try:
            link.connect()  # type: ignore[no-untyped-call]
            link.send_command(*route.question)  # type: ignore[no-untyped-call]
            primary = search.heard(node, link.read_response())
        except (redis.RedisError, OSError) as error:
            search.failed(node, error)
            continue
        finally:
            link.disconnect()  # type: ignore[no-untyped-call]
        if primary is not None:
            return primary
    raise search.given_up()


def _asking(route: Route) -> dict[str, Any]:
    return {"protocol": 2, "socket_connect_timeout": _ASK_TIMEOUT_S, **route.asking()}
