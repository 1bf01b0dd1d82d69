"""Token streams as events: from any offset, from the stream while it lives and from the result after that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import redis.asyncio

from octavo.queue import wire
from octavo.queue.connection import answered
from octavo.queue.keys import cell_of
from octavo.queue.order import ONE_SEQUENCE, Order
from octavo.terms.messages import Chunk, Terminal
from octavo.terms.models import Event, Result, SequenceResult

PAGE = 512  # entries read in one command


async def read_stream(connection: redis.asyncio.Redis, job_id: str, after: int = 0) -> list[Event]:
    """All that a job's stream holds beyond offset `after`, oldest first. Empty if there is no stream."""
    events: list[Event] = []
    start = after
    while True:
        page = await read_page(connection, job_id, start)
        events += page
        if len(page) < PAGE or page[-1].end:
            return events
        start = page[-1].offset


async def read_page(connection: redis.asyncio.Redis, job_id: str, after: int) -> list[Event]:
    """The next `PAGE` entries beyond offset `after`, fewer at the end."""
    async with answered():
        entries = await connection.xrange(*page_query(job_id, after))
    return parse_entries(entries, after)


def page_query(job_id: str, after: int) -> tuple[str, str, str, int]:
    """Arguments of the XRANGE for the entries beyond offset `after`: an entry's id is the offset behind it."""
    return cell_of(job_id).stream(job_id), f"({after}-0", "+", PAGE


def parse_entries(entries: Any, after: int, order: Order = ONE_SEQUENCE) -> list[Event]:
    """Raw XRANGE entries to events. Raises MalformedMessage."""
    events = [parse_entry(entry_id, fields.get(b"d", b""), after) for entry_id, fields in entries]
    return in_order(events, order)


def parse_entry(entry_id: bytes, payload: bytes, after: int) -> Event:
    """One entry as the event that a reader at offset `after` is owed: a chunk loses the tokens it has already. The id
    of a live entry may name its epoch."""
    place, _, part = entry_id.partition(b"-")
    offset, content = int(place), wire.decode_entry(payload)
    if isinstance(content, Terminal):
        return Event(offset=offset, end=content)
    start = offset - len(content.token_ids)
    if len(part) == 1:
        return Event(offset=offset, chunk=content.after(after - start))
    return Event(offset=offset, chunk=content.after(after - start), epoch=part[2:].decode("ascii", "replace"))


def in_order(events: Sequence[Event], order: Order) -> list[Event]:
    """Events that name their epochs."""
    if not order.several:
        return list(events)
    return [event.model_copy(update={"epoch": order.epoch_at(event.offset)}) for event in events]


def has_gap(events: Sequence[Event], read: int) -> bool:
    """True if tokens are missing behind offset `read`, as where something else has removed a stream."""
    for event in events:
        if event.offset - len(event.token_ids) > read:
            return True
        read = event.offset
    return False


def events_of_result(terminal: Terminal, chunks: Sequence[Chunk], after: int = 0) -> list[Event]:
    """The stream beyond offset `after`, rebuilt from a result."""
    events: list[Event] = []
    offset = 0
    for chunk in chunks:
        start, offset = offset, offset + len(chunk.token_ids)
        if offset > after:
            events.append(Event(offset=offset, chunk=chunk.after(after - start)))
    return [*events, Event(offset=offset, end=terminal)]


def result_of_events(job_id: str, model: str, events: Iterable[Event]) -> Result:
    """The result of a whole stream, from its first event to its end. Raises ValueError if the end is missing."""
    chunks: list[Chunk] = []
    for event in events:
        if event.end is not None:
            return assemble(job_id, model, event.end, chunks)
        if event.chunk is not None:
            chunks.append(event.chunk)
    raise ValueError("the stream has no end yet")


def assemble(job_id: str, model: str, terminal: Terminal, chunks: Iterable[Chunk]) -> Result:
    """The result that a job's end and its chunks, in any grouping, amount to."""
    by_index: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        by_index.setdefault(chunk.index, []).append(chunk)
    return Result(
        id=job_id,
        status=terminal.status,
        model=model,
        sequences=tuple(_sequence(index, by_index[index]) for index in sorted(by_index)),
        usage=terminal.usage,
        error=terminal.error,
        prompt_logprobs=terminal.prompt_logprobs,
        prompt_token_ids=terminal.prompt_token_ids,
    )


def _sequence(index: int, chunks: Sequence[Chunk]) -> SequenceResult:
    with_logprobs = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    return SequenceResult(
        index=index,
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        finish_reason=chunks[-1].finish_reason,
        logprobs=tuple(item for items in with_logprobs for item in items) if with_logprobs else None,
        format=chunks[0].format,
    )
