"""Pages of a job's stored events, read once and not followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from octavo.queue.calls import Query, run_all
from octavo.queue.jobs import damaged, info_query, read_ended
from octavo.queue.protocol import Cell
from octavo.queue.streams import PAGE, has_gap, page_query, parse_entries
from octavo.terms.models import Event, JobInfo


@dataclass(frozen=True)
class Page:
    """Where a job stands, and the next of its events. `is_last`: no more were stored. `holds`: the offset that was
    asked for still means what it did."""

    info: JobInfo
    events: Sequence[Event]
    is_last: bool
    holds: bool = True


async def read_job_page(connection: redis.asyncio.Redis, cell: Cell, job_id: str, after: int) -> Page:
    """The events beyond offset `after`. Raises JobNotFound."""
    entries_query = Query[Any](("XRANGE", *_range(job_id, after)), lambda entries: entries)
    # The status is read first, so that an ended job shows its end.
    info, entries, holds = await run_all(connection, [info_query(job_id), entries_query, cell.holds_order(job_id)])
    events = parse_entries(entries, after)
    has_end = bool(events) and events[-1].end is not None
    is_short = len(events) < PAGE
    if info.status.is_terminal and (has_gap(events, after) or (is_short and not has_end)):
        events, is_short = await read_ended(connection, job_id, after), True
    elif has_gap(events, after):
        raise damaged(job_id)
    return Page(info, events, is_last=is_short or has_end, holds=holds or after == 0)


def _range(job_id: str, after: int) -> tuple[str, str, str, str, int]:
    stream, start, end, count = page_query(job_id, after)
    return stream, start, end, "COUNT", count
