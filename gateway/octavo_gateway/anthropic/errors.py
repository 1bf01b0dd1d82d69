"""Errors in Anthropic's shape: `{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError

from octavo.terms.errors import OctavoError
from octavo_gateway.errors import ApiError, of_exception

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


class AnthropicRoute(APIRoute):
    """A route whose errors have this shape."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_with_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except (ApiError, OctavoError, ValidationError, RequestValidationError) as error:
                found = of_exception(error)
                return JSONResponse(error_body(found), found.status, found.headers)

        return handle_with_errors


def error_body(error: ApiError) -> dict[str, Any]:
    """`error` in this shape. Its message begins with the field at fault, if one is."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}
