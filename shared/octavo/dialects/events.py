"""Events of a job as JSON: what its streams send, whatever their protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from octavo.dialects.logprobs import logprobs_json
from octavo.terms.messages import Chunk, JobStatus, Terminal
from octavo.terms.models import Event
from octavo.terms.structs import as_dict

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # several times as fast as `json.dumps`
_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


def json_line(value: Any) -> str:
    """JSON on one line."""
    return on_one_line(_encode(value))


def on_one_line(text: str) -> str:
    """JSON without line ends, on one line also for readers that know Unicode's, as Python's `splitlines` does."""
    return text if text.isascii() else text.translate(_LINE_ENDS)


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
    reason = "null" if chunk.finish_reason is None else json_line(chunk.finish_reason)
    data = (
        f'{{"offset":{event.offset},"index":{chunk.index},"token_ids":[{ids}],'
        f'"text":{json_line(chunk.text)},"finish_reason":{reason}'
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
