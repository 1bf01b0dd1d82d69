"""Receivers of webhooks that do what their path says, well or badly."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

LOCAL = ("127.0.0.0/8",)
HOSTS = (
    *("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "127.1", "0177.0.0.1"),
    *("169.254.169.254", "[fd00:ec2::254]", "10.0.0.1", "0.0.0.0", "0", "[64:ff9b::a9fe:a9fe]", "192.168.1.1"),
)
"""Ways to write addresses of this machine and of its neighbours."""


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """A server. Paths: a status (`/500`), `/redirect`, `/later` (503 and Retry-After), `/hang`, `/close`, `/lie` (fewer
    bytes than it said), `/flood` (no end of a body), `/trickle` (a body that never ends), `/garbage`. What follows a
    second slash says which endpoint it is."""

    port: int = 0
    received: list[Received] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0
    read_by_client: int = 0

    def url(self, path: str, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    def ids(self, path: str) -> list[str]:
        return [one.headers["webhook-id"] for one in self.received if one.path == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._answer(reader, writer)
        finally:
            self.open_now -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        path = head[0].split(" ")[1]
        self.received.append(Received(path, headers, body))
        what = path.split("/")[1].partition("?")[0]
        match what:
            case "hang":
                await asyncio.sleep(3600)
            case "close":
                return
            case "garbage":
                writer.write(b"\x00\x01 what?\r\n\r\n")
            case "redirect":
                writer.write(b"HTTP/1.1 302 Found\r\nLocation: /200/redirected\r\nContent-Length: 0\r\n\r\n")
            case "later":
                writer.write(b"HTTP/1.1 503 Later\r\nRetry-After: 3000\r\nContent-Length: 0\r\n\r\n")
            case "lie":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nfew")
            case "flood" | "trickle":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
                while True:
                    writer.write(b"x" * (65_536 if what == "flood" else 1))
                    await writer.drain()
                    self.read_by_client += 65_536
                    await asyncio.sleep(0 if what == "flood" else 0.5)
            case _:
                writer.write(f"HTTP/1.1 {what} X\r\nContent-Length: 2\r\n\r\nok".encode())
        await writer.drain()


@asynccontextmanager
async def receiving(context: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
