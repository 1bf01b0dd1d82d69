"""Chunks of an OpenAI-style stream as bytes. What is the same in all of them is serialised once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo_gateway.errors import ApiError

DONE = b"data: [DONE]\n\n"


class Frames:
    """Chunks of one stream.

    `usage` says whether clients expect the field at all: it is null on every chunk but those that carry it.
    """

    def __init__(self, head: Mapping[str, Any], *, usage: bool) -> None:
        self._head = "data: " + json.dumps(head)[:-1] + ', "choices":['
        self._tail = '],"usage":null}\n\n' if usage else "]}\n\n"

    def choice(self, choice: str, usage: Mapping[str, Any] | None = None) -> bytes:
        """One choice, as JSON text."""
        tail = self._tail if usage is None else f'],"usage":{json.dumps(usage)}}}\n\n'
        return f"{self._head}{choice}{tail}".encode()

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The chunk without choices that ends a stream with usage."""
        return self.choice("", usage)


def error_frame(error: ApiError) -> bytes:
    """An error after the status was sent."""
    return f"data: {json.dumps(error.body())}\n\n".encode()
