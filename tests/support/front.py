"""One address before gateways that come and go: passes requests on, and keeps what programs sent."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

import httpx
import uvicorn
from waiting import STALL_S, until

_HOP_BY_HOP = {"host", "connection", "content-length", "transfer-encoding"}
Message = dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """A request of a program, and the head of the gateway's answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    answer: httpx.Response


class Front:
    """A load balancer, as a program sees it: where the gateway behind it dies, its answers break off."""

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        self.sent: list[Sent] = []
        self.begun = self.passed = 0
        """Requests that came, and bytes of streams that went, so far."""
        self._http = httpx.AsyncClient(timeout=STALL_S)
        self._listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(self._serve, interface="asgi3", log_config=None, lifespan="off", ws="none")
        self._server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def posted(self) -> list[Sent]:
        """Requests that ask for an answer; programs also look whether an address is there."""
        return [sent for sent in self.sent if sent.method == "POST"]

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._server.serve([self._listener]))
        await until(lambda: self._server.started)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.force_exit = self._server.should_exit = True
        await self._serving
        await self._http.aclose()
        self._listener.close()

    async def _serve(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path = scope["raw_path"].decode() + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
        self.begun += 1
        request = self._http.build_request(
            scope["method"],
            self.gateway + path,
            content=body,
            headers={name: value for name, value in headers.items() if name not in _HOP_BY_HOP},
        )
        answer = await self._http.send(request, stream=True)
        content = json.loads(body) if headers.get("content-type", "").startswith("application/json") else None
        self.sent.append(Sent(scope["method"], path, headers, content, answer))
        kept = [(name, value) for name, value in answer.headers.raw if name.lower().decode() not in _HOP_BY_HOP]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
        async for piece in self._pieces(answer):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for piece in answer.aiter_raw():
                if answer.headers["content-type"].startswith("text/event-stream"):
                    self.passed += len(piece)
                yield piece
        finally:
            await answer.aclose()
