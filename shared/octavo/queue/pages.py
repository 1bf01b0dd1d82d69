"""Pages of a job's stored events, read once and not followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from octavo.queue.calls import Command, Query, run_all
from octavo.queue.jobs import damaged, info_query, locate, read_ended
from octavo.queue.order import FIELDS, Order, order_of, run_of
from octavo.queue.streams import PAGE, has_gap, in_order, page_query, parse_entries
from octavo.terms.models import Event, JobInfo
from octavo.terms.positions import Position


@dataclass(frozen=True)
class Page:
    """Where a job stands, and the next of its events. `is_last`: no more were stored. `holds`: the position that was
    asked for still means what it did."""

    info: JobInfo
    events: Sequence[Event]
    is_last: bool
    holds: bool = True


async def read_job_page(connection: redis.asyncio.Redis, job_id: str, after: Position) -> Page:
    """The events beyond a position. Raises JobNotFound."""
    entries_query = Query[Any](("XRANGE", *_range(job_id, after.offset)), lambda entries: entries)
    # The status is read first, so that an ended job shows its end.
    asked: list[Command[Any]] = [info_query(job_id), entries_query, _order_query(job_id)]
    if after.offset and not after.epoch:
        asked.append(Query[str](("INFO", "server"), run_of))
    info, entries, order, *run = await run_all(connection, asked)
    holds = order.holds(after)
    if holds is False or (holds is None and run != [order.run]):
        return Page(info, (), is_last=False, holds=False)
    events = parse_entries(entries, after.offset, order)
    has_end = bool(events) and events[-1].end is not None
    is_short = len(events) < PAGE
    if info.status.is_terminal and (has_gap(events, after.offset) or (is_short and not has_end)):
        events, is_short = in_order(await read_ended(connection, job_id, after.offset), order), True
    elif has_gap(events, after.offset):
        raise damaged(job_id)
    return Page(info, events, is_last=is_short or has_end)


async def read_tail(connection: redis.asyncio.Redis, job_id: str) -> tuple[JobInfo, Position]:
    """Where a job stands, and the position behind all that is stored of it. Raises JobNotFound."""
    info, order = await run_all(connection, [info_query(job_id), _order_query(job_id)])
    return info, Position(info.tokens, order.epoch_at(info.tokens))


def _order_query(job_id: str) -> Query[Order]:
    return Query(("HMGET", locate(job_id).job(job_id), *FIELDS), order_of)


def _range(job_id: str, after: int) -> tuple[str, str, str, str, int]:
    stream, start, end, count = page_query(job_id, after)
    return stream, start, end, "COUNT", count
