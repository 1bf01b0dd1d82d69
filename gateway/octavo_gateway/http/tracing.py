"""The span of each request, and the trace that its jobs belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.terms.tracing import conventions as names
from octavo.terms.tracing.context import HEADER, checked
from octavo_gateway.http.requests import QUIET, route_of

if TYPE_CHECKING:
    from octavo.service.tracing.tracing import Tracing


class Traced:
    """ASGI middleware. A span for each request where traces are exported; without, nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = scope.get("state", {}).get("gateway")
        if scope["type"] != "http" or gateway is None or gateway.tracing is None or scope["path"] in QUIET:
            await self._app(scope, receive, send)
            return
        with gateway.tracing.serving(scope["method"], Headers(scope=scope).get(HEADER, "")) as span:
            await self._serve(span, scope, receive, send)

    async def _serve(self, span: Any, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            route = route_of(scope)
            span.update_name(f"{scope['method']} {route}")
            attributes = {
                names.HTTP_METHOD: scope["method"],
                names.HTTP_ROUTE: route,
                names.URL_SCHEME: scope["scheme"],
            }
            if status:
                attributes[names.HTTP_STATUS] = status
            if not status or status >= 500:
                attributes[names.ERROR_TYPE] = str(status or "none")
            span.set_attributes(attributes)


def trace_of(request: Request) -> str:
    """The context for what a request makes: that of its span, or where none is recorded here that of its caller; empty
    for none."""
    tracing: Tracing | None = request.state.gateway.tracing
    return checked(request.headers.get(HEADER)) if tracing is None else tracing.current()
