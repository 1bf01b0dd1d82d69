"""Events of a job as JSON: what its streams send, whatever their protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec

from octavo.dialects.logprobs import logprobs_json
from octavo.terms.messages import Chunk, JobStatus, Terminal
from octavo.terms.models import Event
from octavo.terms.structs import as_dict

quote = json.JSONEncoder(ensure_ascii=False).encode
"""A string as JSON, several times faster than `json.dumps` with the same option."""


def event_bytes(event: Event) -> bytes:
    """One server-sent event."""
    if event.end is not None:
        name = "error" if event.end.status in (JobStatus.FAILED, JobStatus.EXPIRED) else "done"
        return f"id: {event.offset}-1\nevent: {name}\ndata: {end_json(event.offset, event.end)}\n\n".encode()
    if event.progress is not None:  # without an id: a reader that comes back is where it was
        return f"event: progress\ndata: {json.dumps(as_dict(event.progress))}\n\n".encode()
    if event.reset:
        return b'id: 0\nevent: stream_reset\ndata: {"offset":0}\n\n'
    return f"id: {event.position}\nevent: token\ndata: {tokens_json(event)}\n\n".encode()


def tokens_json(event: Event) -> str:
    """The tokens of an event."""
    chunk = event.chunk or Chunk()
    ids = ",".join(map(str, chunk.token_ids))
    reason = "null" if chunk.finish_reason is None else quote(chunk.finish_reason)
    data = (
        f'{{"offset":{event.offset},"index":{chunk.index},"token_ids":[{ids}],'
        f'"text":{quote(chunk.text)},"finish_reason":{reason}'
    )
    if chunk.logprobs is not None:
        data += f',"logprobs":{json.dumps(logprobs_json(chunk.logprobs))}'
    if chunk.format is not None:
        data += f',"format":{json.dumps(as_dict(chunk.format))}'
    return data + "}"


def end_json(offset: int, end: Terminal) -> str:
    """How a job ended."""
    return json.dumps(
        {"offset": offset, "status": end.status, "usage": as_dict(end.usage), "error": as_dict(end.error)}
    )


def single_tokens(event: Event) -> Iterator[Event]:
    """An event of each token: how many a worker or a reader took at once is no part of a log."""
    chunk = event.chunk or Chunk()
    first = event.offset - len(chunk.token_ids) + 1
    for place, one in enumerate(chunks_of_one(chunk)):
        yield Event(offset=first + place, chunk=one, epoch=event.epoch)


def chunks_of_one(chunk: Chunk) -> Iterator[Chunk]:
    """A chunk of each token. The finish reason is the last one's."""
    last = len(chunk.token_ids) - 1
    for place in range(len(chunk.token_ids)):
        here = slice(place, place + 1)
        yield msgspec.structs.replace(
            chunk,
            token_ids=chunk.token_ids[here],
            texts=chunk.texts[here],
            logprobs=None if chunk.logprobs is None else chunk.logprobs[here],
            finish_reason=chunk.finish_reason if place == last else None,
        )
