"""A request that is made for a tenant: it reaches public addresses only.

Its name is resolved at each request, every address of it is checked, and the connection is made to an address that was
checked. Redirects are answers like others, no proxy of the environment is used, and of an answer's body nothing is
kept: else it would be a way to read what only this machine can reach.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import certifi
import httpcore

from octavo.service.webhooks.addresses import Networks
from octavo.terms.errors import InvalidRequest
from octavo.terms.webhooks import MAX_URL

CONNECT_S, WHOLE_S = 5.0, 15.0
MOST_READ = 65_536  # bytes of an answer's body
_MOST_ADDRESSES = 8
_RESOLVERS = 128  # threads: a name server that hangs must hold up no other name
_URL = re.compile(r"https?://[!#-;=?-\[\]_a-z~]+", re.IGNORECASE)

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Addresses of a host. Raises OSError."""


class Target(NamedTuple):
    """An address taken apart. `port` None: that of the scheme."""

    scheme: str
    host: str
    port: int | None
    path: str


@dataclass(frozen=True)
class Answer:
    """An answer, of which only the status counts; or, with status 0, the word for why there was none."""

    status: int
    problem: str = ""
    retry_after_s: float = 0.0

    @property
    def is_taken(self) -> bool:
        """True if the receiver has taken the message. A redirect is no such answer."""
        return 200 <= self.status < 300

    def __str__(self) -> str:
        return self.problem or str(self.status)


class Forbidden(OSError):
    """The host has an address that requests may not go to."""


class Outgoing:
    """Requests to receivers that tenants name. `http`: https is not asked for. `networks` are admitted besides public
    addresses. Raises ValueError for what is no network."""

    def __init__(
        self,
        *,
        networks: Iterable[str] = (),
        http: bool = False,
        resolver: Resolver | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._schemes = ("https", "http") if http else ("https",)
        self._backend = _CheckedBackend(Networks(networks), resolver or ThreadedResolver())
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context or _context(),
            max_connections=None,
            max_keepalive_connections=0,  # each request resolves and checks
            network_backend=self._backend,
        )

    async def check(self, url: str) -> None:
        """Raises InvalidRequest for an address that no request would go to now."""
        target = self._target(url)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._backend.addresses(target.host, target.port or 443)
        except Forbidden:
            raise _invalid("it is no public address; OCTAVO_WEBHOOK_NETWORKS of the gateway admits others") from None
        except (OSError, UnicodeError, TimeoutError):
            raise _invalid("the name of its host cannot be resolved") from None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a message. Its answer, or why there is none: it never raises for what a receiver does."""
        try:
            target = self._target(url)
        except InvalidRequest:
            return Answer(0, "invalid_url")
        try:
            async with asyncio.timeout(WHOLE_S):
                return await self._posted(target, body, headers, asyncio.get_running_loop().time() + WHOLE_S)
        except TimeoutError:
            return Answer(0, "timeout")

    async def _posted(self, target: Target, body: bytes, headers: Mapping[str, str], deadline: float) -> Answer:
        url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        host = target.host if ":" not in target.host else f"[{target.host}]"
        named = {"Host": host if target.port is None else f"{host}:{target.port}", **headers}
        sent = [*named.items(), ("Content-Length", str(len(body))), ("Connection", "close")]
        timeouts = {"connect": CONNECT_S, "read": WHOLE_S, "write": WHOLE_S}
        answer = None
        try:
            async with self._pool.stream(
                "POST", url, headers=sent, content=body, extensions={"timeout": timeouts}
            ) as response:
                answer = Answer(response.status, "", _retry_after(response.headers))
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(deadline - 0.5, asyncio.get_running_loop().time() + CONNECT_S)):
                        await _drain(response)
        except Forbidden:
            return Answer(0, "address_refused")
        except (httpcore.TimeoutException, TimeoutError):
            return answer or Answer(0, "timeout")
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, UnicodeError):
            return answer or Answer(0, "unreachable")
        return answer

    def _target(self, url: str) -> Target:
        """Raises InvalidRequest."""
        if len(url) > MAX_URL or _URL.fullmatch(url) is None:
            raise _invalid("it must begin with https://, in ASCII, with no blanks")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise _invalid("its host or its port cannot be read") from None
        if parts.scheme not in self._schemes:
            raise _invalid("it must begin with https://; OCTAVO_WEBHOOK_HTTP=1 of the gateway admits http://")
        if not parts.hostname or "@" in parts.netloc or "%" in parts.netloc or parts.fragment or port == 0:
            raise _invalid("it must have a host, and neither a user, a password nor a fragment")
        path = parts.path or "/"
        return Target(parts.scheme, parts.hostname, port, f"{path}?{parts.query}" if parts.query else path)


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connections to addresses that were checked; names go no further."""

    def __init__(self, networks: Networks, resolve: Resolver) -> None:
        self._networks = networks
        self._resolve = resolve
        self._inner = httpcore.AnyIOBackend()

    async def addresses(self, host: str, port: int) -> list[str]:
        """All addresses of a host. Raises Forbidden if a request may not go to one of them, and OSError for none."""
        found = await self._resolve(host, port)
        if not found:
            raise OSError(f"{host} has no address")
        if not all(self._networks.admits(address) for address in found):
            raise Forbidden(f"{host} has an address that is no public one")
        return found

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises Forbidden, OSError, TimeoutError, and httpcore's errors."""
        problem: Exception = OSError("no address answers")
        async with asyncio.timeout(CONNECT_S):
            for address in (await self.addresses(host, port))[:_MOST_ADDRESSES]:
                try:
                    return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
                except httpcore.ConnectError as error:
                    problem = error
        raise problem


class ThreadedResolver:
    """Addresses by the system's resolver, which blocks."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVERS, "resolver")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Raises OSError."""
        look_up = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(address[0]) for *_, address in await look_up))


async def _drain(response: httpcore.Response) -> None:
    """Read what a receiver still says, so that it can end in peace, and keep none of it."""
    read = 0
    async for piece in response.aiter_stream():
        read += len(piece)
        if read >= MOST_READ:
            return


def _retry_after(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Seconds that a receiver wants to be left alone for."""
    said = next((value.decode("latin-1").strip() for name, value in headers if name.lower() == b"retry-after"), "")
    if said.isascii() and said.isdecimal():
        return float(said[:9])
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(f"webhooks cannot be sent to this url: {why}", code="invalid_url", param="url")
