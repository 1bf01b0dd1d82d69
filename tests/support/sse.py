"""Server-sent events as a client sees them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class ServerEvent:
    """One event; `comment` and `retry` stand alone."""

    id: str | None = None
    event: str | None = None
    data: Any = None
    retry: int | None = None
    comment: str | None = None
    fields: list[str] = field(default_factory=list)


async def read_events(response: httpx.Response) -> AsyncIterator[ServerEvent]:
    """All events of a response, comments too."""
    event = ServerEvent()
    async for line in response.aiter_lines():
        if not line:
            if event.fields:
                yield event
            event = ServerEvent()
            continue
        name, _, value = line.partition(": ") if not line.startswith(":") else ("comment", "", line[1:].strip())
        event.fields.append(name)
        setattr(event, name, json.loads(value) if name == "data" else int(value) if name == "retry" else value)
