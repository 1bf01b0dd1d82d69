"""Accounting of every request: an id, a line in the log, a count."""

from __future__ import annotations

import logging
import re
import uuid
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.dialects.ignored import Ignored
from octavo.terms.access.api_keys import without_secrets
from octavo_gateway.errors import CLIENT_CLOSED_REQUEST, ApiError
from octavo_gateway.http.rates import rate_headers

INTERNAL_ERROR = ApiError(500, "an error inside the gateway; its log says more", code="internal_error")
HEADER = "X-Request-Id"
IGNORED = "octavo-ignored"
"""Names of the request's fields that were taken and change nothing."""
_FOR_BROWSERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",  # pages that CORS admits ask in its way
}
QUIET = ("/livez", "/readyz", "/health", "/ping", "/metrics")
"""Paths that are asked for all the time."""

log = logging.getLogger(__name__)


class RequestLog:
    """ASGI middleware. `X-Request-Id` of the request is kept if it is a plausible one, and always sent back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        started = monotonic()
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                if ignored := _ignored(scope):
                    headers[IGNORED] = ignored
                headers.update(rate_headers(scope.get("state", {}).get("rates")))
                headers.update(_FOR_BROWSERS)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("request failed", extra={"request_id": request_id, "path": route_of(scope)})
            if status is None:
                await INTERNAL_ERROR.response(scope)(scope, receive, send_with_id)
        finally:
            status = status or CLIENT_CLOSED_REQUEST
            _count(scope, status)
            _log(scope, status, request_id, monotonic() - started)


def _request_id(headers: Headers) -> str:
    given = headers.get(HEADER, "")
    return given if re.fullmatch(r"[\w.:-]{1,128}", given, re.ASCII) else uuid.uuid4().hex


def route_of(scope: Scope) -> str:
    """The route's pattern: a path has ids in it, and clients may send any."""
    return getattr(scope.get("route"), "path", "unknown")


def _ignored(scope: Scope) -> str:
    found: Ignored | None = scope.get("state", {}).get("ignored")
    return found.header() if found is not None else ""


def _count(scope: Scope, status: int) -> None:
    if (gateway := scope.get("state", {}).get("gateway")) is not None:
        gateway.metrics.http_requests.labels(scope["method"], route_of(scope), status).inc()


def _log(scope: Scope, status: int, request_id: str, seconds: float) -> None:
    level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
    fields = {
        "request_id": request_id,
        "method": scope["method"],
        "path": without_secrets(scope["raw_path"].decode("latin-1")),  # what a terminal would obey is quoted there
        "status": status,
        "dur_ms": round(seconds * 1000, 1),
    }
    line = "%(method)s %(path)s %(status)s in %(dur_ms)s ms"
    if ignored := _ignored(scope):
        fields["ignored"] = ignored
        line += ", ignored %(ignored)s"
    log.log(level, line, fields, extra=fields)
