"""Files and batches as the API shows them, and the fields that a batch is made of."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from octavo.dialects.openai.batch.envelope import URLS
from octavo.dialects.openai.fields import Body
from octavo.terms.batches import (
    LEAST_KEPT_S,
    MAX_WINDOW_HOURS,
    MOST_KEPT_S,
    BatchInfo,
    BatchStatus,
    FileInfo,
    LineError,
)
from octavo.terms.errors import InvalidRequest
from octavo.terms.fields import Metadata

_WINDOW = re.compile(r"([1-9]\d{0,2})([hd])")
_HOURS = {"h": 1, "d": 24}


class ExpiresAfter(Body):
    """How long a file is kept, from its creation on."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=LEAST_KEPT_S, le=MOST_KEPT_S)


class BatchRequest(Body):
    """`POST /v1/batches`. A `completion_window` is a number of hours or days, up to 7 days."""

    input_file_id: str = Field(min_length=1, max_length=100)
    endpoint: str = Field(max_length=100)
    completion_window: str = Field(max_length=10)
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    @property
    def window_s(self) -> int:
        """Raises InvalidRequest for what is no window."""
        found = _WINDOW.fullmatch(self.completion_window)
        hours = int(found[1]) * _HOURS[found[2]] if found else 0
        if not 0 < hours <= MAX_WINDOW_HOURS:
            message = "completion_window must be a number of hours or days up to 7 days, such as 24h"
            raise InvalidRequest(message, code="invalid_value", param="completion_window")
        return hours * 3600

    def check(self) -> None:
        """Raises InvalidRequest."""
        if self.endpoint not in URLS:
            message = f"endpoint must be {' or '.join(URLS)}"
            raise InvalidRequest(message, code="invalid_value", param="endpoint")
        _ = self.window_s


def file_object(info: FileInfo) -> dict[str, Any]:
    """A file as the API shows it."""
    return {
        "id": info.id,
        "object": "file",
        "bytes": info.size,
        "created_at": int(info.created_at),
        "expires_at": _second(info.expires_at),
        "filename": info.name,
        "purpose": info.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(info: BatchInfo) -> dict[str, Any]:
    """A batch as the API shows it."""
    moments = {f"{status}_at": _second(info.reached.get(status)) for status in BatchStatus if status != "validating"}
    return {
        "id": info.id,
        "object": "batch",
        "endpoint": info.endpoint,
        "model": info.model,
        "errors": {"object": "list", "data": [_error(error) for error in info.errors]} if info.errors else None,
        "input_file_id": info.input_file_id,
        "completion_window": info.window,
        "status": info.status.value,
        "output_file_id": info.output_file_id,
        "error_file_id": info.error_file_id,
        "created_at": int(info.created_at),
        "expires_at": int(info.expires_at),
        **moments,
        "request_counts": {"total": info.total, "completed": info.completed, "failed": info.failed},
        "usage": _usage(info),
        "metadata": dict(info.metadata) if info.metadata is not None else None,
    }


def _usage(info: BatchInfo) -> dict[str, Any]:
    usage = info.usage
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _error(error: LineError) -> dict[str, Any]:
    return {"code": error.code, "line": error.line, "message": error.message, "param": error.param}


def _second(moment: float | None) -> int | None:
    return None if moment is None else int(moment)
