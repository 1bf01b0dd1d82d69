"""Server-sent events: a pump that encodes, a mailbox between, a response that writes all that waits in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from octavo_gateway.errors import ClientGone

if TYPE_CHECKING:
    from octavo_gateway.state import Gateway

T = TypeVar("T")

KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {
    "Content-Type": "text/event-stream",  # without a charset: there is but one
    "Cache-Control": "no-cache, no-store",
    "X-Accel-Buffering": "no",
}
MAILBOX_BYTES = 256 * 1024


class Mailbox:
    """Bytes that wait for one client, at most about `limit` of them. `on_slow` is called at the first wait for it."""

    def __init__(self, on_slow: Callable[[], None], limit: int = MAILBOX_BYTES) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._limit = limit
        self._on_slow = on_slow
        self._waiting: asyncio.Future[None] | None = None
        self._room, self._taken = asyncio.Event(), asyncio.Event()
        self._taken.set()
        self._is_slow = False
        self.used = False

    def __bool__(self) -> bool:
        return bool(self._parts)

    async def put(self, data: bytes) -> None:
        """Add to what waits; while that is too much, wait for the client. Live tokens then wait in the server."""
        self._parts.append(data)
        self._size += len(data)
        self.used = True
        self._taken.clear()
        self.wake()
        if self._size > self._limit:
            if not self._is_slow:
                self._is_slow = True
                self._on_slow()
            self._room.clear()
            await self._room.wait()

    def take(self) -> bytes:
        """All that waits."""
        data = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        self._room.set()
        self._taken.set()
        return data

    async def emptied(self) -> None:
        """Until nothing waits."""
        await self._taken.wait()

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Until something was put, `wake` was called, or `seconds` have passed."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None


class EventStream(StreamingResponse):
    """Sends what `pump` puts into its mailbox, with a comment after `keep_alive` seconds of silence.

    The pump is a task of its own. It starts at once and is cancelled when the client disconnects: cleaning up belongs
    in its `finally`. The response ends with it. To HEAD the headers are the whole answer.
    """

    def __init__(
        self,
        request: Request,
        pump: Callable[[Mailbox], Coroutine[Any, Any, None]],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._gateway: Gateway = request.state.gateway
        self._mailbox = Mailbox(self._gateway.metrics.sse_slow_consumers.inc)
        self._pump = self._gateway.spawn(_nothing() if request.method == "HEAD" else pump(self._mailbox))
        self._pump.add_done_callback(lambda _: self._mailbox.wake())
        self._watch = self._gateway.spawn(self._leave_with(request))
        super().__init__(self._body(), headers={**HEADERS, **(headers or {})})

    async def begun(self) -> EventStream:
        """Wait for the first bytes; after `keep_alive` seconds of silence they are a comment. Raises what the pump
        raised before them, or ClientGone."""
        keep_alive = self._gateway.settings.keep_alive
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(keep_alive):
                    while not self._mailbox.used and not self._pump.done():
                        await self._mailbox.wait(keep_alive)
            if not self._mailbox.used and not self._pump.done():
                await self._mailbox.put(KEEP_ALIVE)
            if self._pump.cancelled():
                raise ClientGone
            if self._pump.done():
                self._pump.result()
        except BaseException:
            self._stop()
            raise
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._gateway.metrics.sse_connections.inc()
        try:
            await self.stream_response(send)
        finally:
            self._gateway.metrics.sse_connections.dec()
            self._stop()

    async def _leave_with(self, request: Request) -> None:
        await _disconnected(request)
        self._pump.cancel()

    def _stop(self) -> None:
        self._pump.cancel()
        self._watch.cancel()

    async def _body(self) -> AsyncIterator[bytes]:
        keep_alive = self._gateway.settings.keep_alive
        while True:
            if self._mailbox:
                yield self._mailbox.take()
            elif self._pump.done():
                return
            else:
                await self._mailbox.wait(keep_alive)
                if not self._mailbox and not self._pump.done():
                    yield KEEP_ALIVE


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled (and waited for) when the client goes away. Raises ClientGone then."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def unless_draining(gateway: Gateway, work: Coroutine[Any, Any, None]) -> bool:
    """True if `work` came to its end before the gateway was to stop, which cancels it. Raises what `work` raises."""
    following = asyncio.ensure_future(work)
    draining = asyncio.ensure_future(gateway.draining.wait())
    try:
        await asyncio.wait({following, draining}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        return following.done()
    finally:
        following.cancel()
        draining.cancel()


async def _nothing() -> None:
    pass


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
