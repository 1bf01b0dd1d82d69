"""Token streams read from code that is not asynchronous."""

from __future__ import annotations

import redis

from octavo.queue.streams import PAGE, page_query, parse_entries
from octavo.terms.models import Event


def read_stream_sync(connection: redis.Redis, job_id: str, after: int = 0) -> list[Event]:
    """All that a job's stream holds beyond offset `after`, oldest first."""
    events: list[Event] = []
    while True:
        page = parse_entries(connection.xrange(*page_query(job_id, after)), after)
        events += page
        if len(page) < PAGE or page[-1].end:
            return events
        after = page[-1].offset
