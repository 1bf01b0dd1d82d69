"""HTTP as uvicorn speaks it, with the limits that it leaves open: connections, sizes of heads, time to send a request.

Clients without a key reach this code. What it refuses costs no task, and is answered in the shape of all errors.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo_gateway.errors import ApiError
from octavo_gateway.http.flow import Flow, Taking, after_heads
from octavo_gateway.state import Gateway

log = logging.getLogger(__name__)

MAX_WAITING = 64
"""Requests that wait on a connection for the answer to one before them. While there are so many it is not read."""

_LEAST_RATE = 100_000
"""Bytes a second that an upload has to bring on average over the time that any other request has in all."""

_RESERVED_FILES = 64
"""Open files that are no clients' connections: the server's, logs, metrics."""


def raise_file_limit() -> None:
    """Allow this process as many open files as its user may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    flow: Flow

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._gateway: Gateway = self.app_state["gateway"]
        self._settings = self._gateway.settings
        self.timeout_keep_alive = self._settings.idle_timeout
        self._pending_bytes = 0  # of a head, or between two pieces of a body
        self._receiving: asyncio.TimerHandle | None = None
        self._uploaded: int | None = None  # bytes of an upload since its rate was looked at
        self._unparsed = bytearray()  # what came together with more requests than may wait
        self._running: RequestResponseCycle | None = None
        self._taking: Taking | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
        self._taking = Taking(transport, self._settings.stall_timeout, self._let_go)
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(self.connections) > min(self._settings.max_connections, open_files - _RESERVED_FILES):
            self._refuse(ApiError(503, "too many connections: try again", code="too_many_connections"))
        else:  # load balancers and browsers open some ahead of their requests
            self.timeout_keep_alive_task = self.loop.call_later(
                self._settings.idle_timeout, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_received()
        self._unparsed.clear()
        if self._taking is not None:
            self._taking.end()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):  # the base class knows the latest only
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._expect_request()
        self._unparsed += data
        self._parse()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unparsed or self.flow.held:
            self.loop.call_soon(self._parse)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is not None:
            self._taking.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking is not None:
            self._taking.end()

    def _parse(self) -> None:
        """Reads what has come, as long as no more requests wait than may."""
        while self._unparsed and len(self.pipeline) < MAX_WAITING and not self.transport.is_closing():
            end = after_heads(self._unparsed, MAX_WAITING - len(self.pipeline))
            piece = bytes(memoryview(self._unparsed)[:end])
            del self._unparsed[:end]
            self._pending_bytes += len(piece)
            super().data_received(piece)
            if self._pending_bytes > self._settings.max_header_bytes:
                self._refuse_head()
        was_held = self.flow.held
        self.flow.hold(bool(self._unparsed) or len(self.pipeline) >= MAX_WAITING)
        if was_held and not self.pipeline:
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _let_go(self) -> None:
        log.info("a client took nothing for %g s: its connection is closed", self._settings.stall_timeout)
        self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._pending_bytes = self._pending_bytes or 1
        self._expect_request()

    def on_headers_complete(self) -> None:
        """The parser's call at the end of a head. Raises ValueError, which stops the parser, for one that is
        refused."""
        self._pending_bytes = 0
        if (
            sum(len(name) + len(value) for name, value in self.headers) + len(self.url)
            > self._settings.max_header_bytes
        ):
            self._refuse_head()
            raise ValueError("the parser has to stop here")
        super().on_headers_complete()
        if self.scope["path"] == "/v1/files" and self.scope["method"] == "POST":
            self._uploaded = 0
        if self.scope["http_version"] == "1.0":
            _end_with_connection(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        if self._uploaded is not None:
            self._uploaded += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._pending_bytes = 0
        self._request_received()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg, code="invalid_http"))

    @property
    def _has_request(self) -> bool:
        """The application is at work on a request."""
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_request(self) -> None:
        """Start the client's time to send a request whole."""
        if self._receiving is None:
            self._receiving = self.loop.call_later(self._settings.request_timeout, self._too_slow)

    def _request_received(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None
        self._uploaded = None

    def _too_slow(self) -> None:
        self._receiving = None
        if self._uploaded is not None and (
            self.flow.read_paused or self._uploaded >= _LEAST_RATE * self._settings.request_timeout
        ):
            self._uploaded = 0
            self._expect_request()
            return
        if self._has_request and not self.cycle.more_body:
            self._expect_request()  # the next request has to wait for this answer
        elif not self._has_request and not self._pending_bytes:
            self.transport.close()  # an answer to nothing would be taken for that to a request on its way
        else:
            self._refuse(ApiError(408, "the request did not arrive in time: send it faster", code="request_timeout"))

    def _refuse_head(self) -> None:
        limit = self._settings.max_header_bytes
        self._refuse(ApiError(431, f"address and headers have more than {limit} bytes", code="headers_too_large"))

    def _refuse(self, error: ApiError) -> None:
        """Answer without the application, and hang up. While it answers a request there is only the latter."""
        if self.transport.is_closing():
            return
        if not self._has_request:
            self._gateway.metrics.http_requests.labels("unknown", "unknown", error.status).inc()
        if not self._has_request or (self.cycle.more_body and not self.cycle.response_started):
            response = error.response(self.scope or {})
            head = [b"HTTP/1.1 %d %s" % (error.status, HTTPStatus(error.status).phrase.encode())]
            head += [b"%s: %s" % header for header in response.raw_headers]
            self.transport.write(b"\r\n".join([*head, b"connection: close", b"", bytes(response.body)]))
        self.transport.close()


def _end_with_connection(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows no chunks: an answer of unknown length ends where the connection does."""
    send = cycle.send
    cycle.chunked_encoding = False

    async def unchunked(message: Any) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = unchunked  # type: ignore[method-assign]
