"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`, whatever went wrong, and in Anthropic's
where its clients ask."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from octavo.dialects.openai.problems import error_object, invalid_body, problem, status_of
from octavo.terms.access.api_keys import without_secrets
from octavo.terms.errors import (
    Busy,
    JobFailed,
    MalformedMessage,
    NoSecret,
    OctavoError,
    QueueFull,
    RateLimited,
    ServerUnavailable,
    shortened,
)
from octavo.terms.messages import JobError, JobStatus
from octavo_gateway.anthropic import errors as anthropic
from octavo_gateway.http.rates import refusal_headers

log = logging.getLogger(__name__)

IN_OPENAPI: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "What is wrong with the request, and where",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "error": {
                            "type": "object",
                            "properties": {
                                "message": {"type": "string"},
                                "type": {"type": "string"},
                                "param": {"type": ["string", "null"]},
                                "code": {"type": ["string", "null"]},
                            },
                        }
                    },
                }
            }
        },
    }
}
"""The one shape, for the API's description of itself."""

UNAVAILABLE = "the queue is not available: try again; the log of the gateway says why"
"""Instead of the reason, which names servers: that is the operators' business."""

CLIENT_CLOSED_REQUEST = 499
"""Status in logs and metrics where the client left before the answer."""


class ClientGone(Exception):
    """The client closed its connection: an answer has no reader."""


class ApiError(Exception):
    """An error with its HTTP status. `param` names the offending field, `code` is safe to branch on."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = without_secrets(shortened(message))
        self.code = code
        self.param = None if param is None else without_secrets(param)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return error_object(self.status, self.message, code=self.code, param=self.param)

    def response(self, scope: Mapping[str, Any]) -> JSONResponse:
        """The answer to the request of an ASGI scope, in the shape that its client reads."""
        body = anthropic.error_body(self.status, self.message) if anthropic.is_expected(scope) else self.body()
        return JSONResponse(body, self.status, self.headers)


def of_octavo(error: OctavoError) -> ApiError:
    """The HTTP error for an error of the client library."""
    if isinstance(error, JobFailed):
        return of_job(JobStatus(error.status), JobError(code=error.code, message=error.message, param=error.param))
    status = status_of(error)
    headers: dict[str, str] = {}
    if isinstance(error, RateLimited):
        headers = refusal_headers(error)
    elif isinstance(error, QueueFull):
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    elif isinstance(error, ServerUnavailable):
        log.warning("a request cannot be served: %s", error.message)
        return ApiError(status, UNAVAILABLE, code=error.code, headers={"Retry-After": "1"})
    elif isinstance(error, Busy):
        headers["Retry-After"] = "1"
    elif isinstance(error, MalformedMessage | NoSecret):
        headers["x-should-retry"] = "false"
    return ApiError(status, error.message, code=error.code, param=error.param, headers=headers)


def of_job(status: JobStatus, error: JobError | None) -> ApiError:
    """The HTTP error for a job that ended without completing."""
    if error is None:
        error = JobError(code=status.value, message=f"the job ended as {status.value}: submit it again if you want it")
    http = status_of(JobFailed(error.message, status.value, error.code, error.param))
    # Clients retry 409 and 5xx by themselves; this job had all its attempts already.
    return ApiError(http, error.message, code=error.code, param=error.param, headers={"x-should-retry": "false"})


def of_exception(error: OctavoError | ValidationError | RequestValidationError | ApiError) -> ApiError:
    """The HTTP error for what is wrong with a request, or with serving it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return of_octavo(invalid_body(error))
    if isinstance(error, RequestValidationError):
        # `loc` starts with where: query, path, header.
        return of_octavo(problem([{**item, "loc": item["loc"][1:]} for item in error.errors()]))
    return of_octavo(error)


def install(app: FastAPI) -> None:
    """Answer every error of the application in the shape that its client reads."""

    @app.exception_handler(ClientGone)
    @app.exception_handler(ClientDisconnect)  # amid its request's body
    async def _client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(ApiError)
    @app.exception_handler(OctavoError)
    @app.exception_handler(ValidationError)
    @app.exception_handler(RequestValidationError)
    async def _error(
        request: Request, error: OctavoError | ValidationError | RequestValidationError | ApiError
    ) -> JSONResponse:
        return of_exception(error).response(request.scope)

    @app.exception_handler(HTTPException)
    async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
        messages = {
            404: f"no such path: {request.url.path[:200]}; /docs lists what there is",
            405: f"{request.method} is not allowed on {request.url.path}",
        }
        code = HTTPStatus(error.status_code).name.lower()
        message = messages.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, code=code, headers=error.headers).response(request.scope)
