"""Parts of the protocol beside the messages: headers, control events, cursors, entity tags."""

from __future__ import annotations

import json
import random
import time

from octavo_gateway.durable.log import Batch, Offset

NEXT_OFFSET, UP_TO_DATE, CLOSED, CURSOR = "Stream-Next-Offset", "Stream-Up-To-Date", "Stream-Closed", "Stream-Cursor"
HEADERS = (NEXT_OFFSET, UP_TO_DATE, CLOSED, CURSOR, "ETag")

# A private cache may keep what can never change; where more may come, it asks again.
_PAST = "private, max-age=60, stale-while-revalidate=300"
_TAIL = "private, no-cache"
NOT_CACHED = {"Cache-Control": "no-store"}

_EPOCH = 1_728_432_000  # 9 October 2024
_INTERVAL_S = 20
_MOST_JITTER_S = 3600


def headers_of(after: Offset, *, up_to_date: bool, closed: bool) -> dict[str, str]:
    """Where a reader stands."""
    headers = {NEXT_OFFSET: str(after)}
    if up_to_date:
        headers[UP_TO_DATE] = "true"
    if closed:
        headers[CLOSED] = "true"
    return headers


def batch_headers(batch: Batch) -> dict[str, str]:
    return headers_of(batch.next, up_to_date=batch.up_to_date, closed=batch.closed)


def cache_headers(batch: Batch, job_id: str, start: Offset) -> dict[str, str]:
    """For a read at `start`. The tag changes when the log grows or ends: its end is a message, too."""
    return {
        "ETag": f'"{job_id}:{start}:{batch.next}"',
        "Cache-Control": _PAST if batch.closed or not batch.up_to_date else _TAIL,
    }


def next_cursor(given: str | None, now: float | None = None) -> str:
    """Names the interval of time that an answer belongs to, so that caches in between do not give the same one for
    ever. It is always beyond the cursor that was `given`."""
    interval = int(((time.time() if now is None else now) - _EPOCH) // _INTERVAL_S)
    if given is not None and given.isascii() and given.isdecimal() and len(given) < 16 and int(given) >= interval:
        jitter_s = random.randint(1, _MOST_JITTER_S)
        return str(int(given) + max(1, jitter_s // _INTERVAL_S))
    return str(interval)


def batch_events(batch: Batch, cursor: str) -> bytes:
    """The messages as one event, if there are any, and the control event behind it."""
    data = f"event: data\ndata:{batch.body}\n\n" if batch.messages else ""
    control: dict[str, str | bool] = {"streamNextOffset": str(batch.next)}
    if not batch.closed:
        control["streamCursor"] = cursor
    if batch.up_to_date:
        control["upToDate"] = True
    if batch.closed:
        control["streamClosed"] = True
    return f"{data}event: control\ndata:{json.dumps(control)}\n\n".encode()
