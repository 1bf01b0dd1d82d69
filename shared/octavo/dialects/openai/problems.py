"""Problems of a body in the words of OpenAI's error object: message, code, param."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic import ValidationError

from octavo.dialects.openai.fields import OF_VALUES, advice_of
from octavo.terms.errors import (
    Busy,
    GrammarError,
    IdempotencyConflict,
    InvalidRequest,
    JobFailed,
    JobNotFound,
    MalformedMessage,
    NoSecret,
    OctavoError,
    QueueFull,
    RateLimited,
    ServerUnavailable,
    StorageUnavailable,
    TenantSuspended,
    UnknownModel,
    WorkerNotFound,
)
from octavo.terms.messages import JobStatus
from octavo.terms.problems import in_words

_MOST_ERRORS = 64  # that are compared: a field may have as many as a body has bytes

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_STATUSES: tuple[tuple[type[OctavoError], int], ...] = (
    (UnknownModel, 404),
    (GrammarError, 400),
    (InvalidRequest, 400),
    (MalformedMessage, 500),  # stored by a worker or damaged since; a client's own bytes are an InvalidRequest
    (JobNotFound, 404),
    (WorkerNotFound, 404),
    (IdempotencyConflict, 409),
    (RateLimited, 429),
    (QueueFull, 429),
    (TenantSuspended, 403),
    (NoSecret, 501),
    (ServerUnavailable, 503),
    (StorageUnavailable, 503),
    (Busy, 503),
)
_OF_ENDS = {JobStatus.CANCELLED: 409, JobStatus.EXPIRED: 504}


def status_of(error: OctavoError) -> int:
    """The HTTP status of an error of the client library. A worker names a `param` when the request itself is at fault,
    such as a prompt longer than the context."""
    if isinstance(error, JobFailed):
        return _OF_ENDS.get(JobStatus(error.status), 400 if error.param else 500)
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def error_object(status: int, message: str, *, code: str | None, param: str | None) -> dict[str, Any]:
    """The body of an answer with this status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def invalid_body(error: ValidationError) -> InvalidRequest:
    """The error for a body that is not valid."""
    return problem(error.errors(include_url=False, include_input=False))


def problem(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """The error for the first of pydantic's errors. Its input is never repeated: it may be a prompt."""
    first = _most_specific(errors)
    path = _path(first["loc"])
    param = ".".join(path) or None
    kind = first["type"]
    if kind == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {in_words(first)}", code="invalid_json")
    if kind == "missing":
        return InvalidRequest(in_words(first, param or ""), code="missing_required_parameter", param=param)
    if kind == "not_supported":
        return InvalidRequest(f"{param} is not supported: {in_words(first)}", code="unknown_parameter", param=param)
    if kind in ("extra_forbidden", "none_required"):
        advice = advice_of(path) or OF_VALUES.get(path[-1]) if path else None
        message = f"{param} is not supported: {advice}" if advice else f"{param} is unknown: leave it out"
        return InvalidRequest(message, code="unknown_parameter", param=param)
    advice = OF_VALUES.get(path[0]) if path else None
    message = f"{param}: {advice}" if advice else in_words(first, param or "")
    return InvalidRequest(message, code="invalid_value", param=param)


def _most_specific(errors: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    # A field that takes several forms reports what is wrong with each. Meant is one of the right type, or the deepest.
    # A list that stops at its first bad item is too short as well: that is no error of its own.
    field = errors[0]["loc"][:1]
    of_field = list(islice((error for error in errors if error["loc"][:1] == field), _MOST_ERRORS))
    causes = [error for error in of_field if not any(_is_inside(other["loc"], error["loc"]) for other in of_field)]
    return max(causes, key=lambda error: (not error["type"].endswith("_type"), len(error["loc"])))


def _is_inside(loc: Sequence[str | int], outer: Sequence[str | int]) -> bool:
    return len(loc) > len(outer) and loc[: len(outer)] == outer


def _path(loc: Sequence[str | int]) -> list[str]:
    # Names of union branches such as `tuple[str, ...]` are pydantic's, not the caller's.
    return [str(part)[:100] for part in loc if isinstance(part, int) or not _is_branch(part)]


def _is_branch(part: str) -> bool:
    return "[" in part or part in ("str", "constrained-str")
