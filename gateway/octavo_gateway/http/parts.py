"""JSON that is made while it is sent: a client that reads slowly costs one part of its answer, not the whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Send

_PART_BYTES = 32 * 1024
_CHARACTERS = 8192  # of a long text in one piece
_PATIENCE_S = 0.2

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def pieces(value: Any) -> Iterator[str]:
    """JSON of a value. An iterator in it is an array whose items are made when their turn comes; long texts are cut."""
    if isinstance(value, Mapping):
        yield "{"
        for number, (name, member) in enumerate(value.items()):
            yield f"{',' if number else ''}{_encode(name)}:"
            yield from pieces(member)
        yield "}"
    elif isinstance(value, Iterator):
        yield "["
        for number, item in enumerate(value):
            if number:
                yield ","
            yield from pieces(item)
        yield "]"
    elif isinstance(value, str) and len(value) > _CHARACTERS:
        yield '"'
        for start in range(0, len(value), _CHARACTERS):
            yield _encode(value[start : start + _CHARACTERS])[1:-1]
        yield '"'
    else:
        yield _encode(value)


def _parts(found: Iterator[str]) -> Iterator[bytes]:
    """The same in larger parts."""
    waiting: list[str] = []
    size = 0
    for piece in found:
        waiting.append(piece)
        size += len(piece)
        if size >= _PART_BYTES:
            yield "".join(waiting).encode()
            waiting, size = [], 0
    yield "".join(waiting).encode()


class JsonInParts(StreamingResponse):
    """A JSON answer. `value` is written as `pieces` has it. While a client keeps it waiting nothing of it stays: `load`
    gives an equal value again, at each further time only after twice the wait."""

    def __init__(self, request: Request, value: Any, load: Callable[[], Awaitable[Any]]) -> None:
        self._rest: Iterator[bytes] | None = _parts(pieces(value)) if request.method != "HEAD" else iter(())
        self._load = load
        self._patience_s = _PATIENCE_S
        super().__init__(_none(), media_type="application/json")

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        sent = 0
        while (part := await self._part(sent)) is not None:
            await self._patiently(send({"type": "http.response.body", "body": part, "more_body": True}))
            sent += 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _part(self, number: int) -> bytes | None:
        if self._rest is None:
            self._rest = islice(_parts(pieces(await self._load())), number, None)
        return next(self._rest, None)

    async def _patiently(self, sending: Awaitable[None]) -> None:
        task = asyncio.ensure_future(sending)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._patience_s)
            if not done:
                self._rest = None
                self._patience_s *= 2
            await task
        finally:
            task.cancel()


async def _none() -> AsyncIterator[bytes]:
    return
    yield b""
