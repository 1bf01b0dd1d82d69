"""Lines of output and error files."""

from __future__ import annotations

import json
from typing import Any

from octavo.dialects.events import on_one_line
from octavo.dialects.ignored import Ignored
from octavo.dialects.openai.problems import error_object, status_of
from octavo.terms.errors import OctavoError

ID_PREFIX = "batch_req_"
UNDONE = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
}
"""Code and message of a line that the end of its batch left undone, by the state of the batch."""


def succeeded(line_id: str, custom_id: str, request_id: str, body: dict[str, Any], ignored: Ignored) -> dict[str, Any]:
    """The line of a request that has its answer. Fields of it that change nothing are named."""
    response = {"status_code": 200, "request_id": request_id, "body": body}
    if ignored:
        response["ignored"] = ignored.header()
    return {"id": line_id, "custom_id": custom_id, "response": response, "error": None}


def rejected(line_id: str, custom_id: str, request_id: str, error: OctavoError) -> dict[str, Any]:
    """The line of a request that failed, as the endpoint would have answered: under `response`, with its status."""
    status = status_of(error)
    body = error_object(status, error.message, code=error.code, param=error.param)
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": line_id, "custom_id": custom_id, "response": response, "error": None}


def undone(line_id: str, custom_id: str, state: str) -> dict[str, Any]:
    """The line of a request that was never answered, since the batch is `expired` or `cancelled`."""
    code, message = UNDONE[state]
    return {"id": line_id, "custom_id": custom_id, "response": None, "error": {"code": code, "message": message}}


def is_success(line: dict[str, Any]) -> bool:
    """True for the line of a request that has its answer, also as versions before wrote it."""
    response = line.get("response")
    return line.get("error") is None and isinstance(response, dict) and response.get("status_code", 200) < 400


def encode(line: dict[str, Any]) -> str:
    """A line of a file, with its end."""
    return on_one_line(json.dumps(line, ensure_ascii=False)) + "\n"
