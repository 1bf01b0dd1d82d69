"""Errors in Anthropic's shape: `{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_PATH = "/v1/messages"
_VERSION = "anthropic-version"


def is_expected(scope: Mapping[str, Any]) -> bool:
    """True if the client of a request reads this shape: by its path, or by the header that Anthropic's clients send."""
    path = scope.get("path", "")
    return path == _PATH or path.startswith(f"{_PATH}/") or _VERSION in Headers(raw=list(scope.get("headers", ())))


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error in this shape. Its message begins with the field at fault, if one is."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
