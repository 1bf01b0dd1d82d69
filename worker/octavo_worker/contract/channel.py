"""Messages over a socket pair: blocking on the engine's side, asyncio on the agent's.

A frame is a 4-byte big-endian length and a msgpack array whose first element names the message.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from array import array

import msgspec

from octavo_worker.contract.messages import BlockReport, MemoryReport, Ready, Refused, StepOutput, ToAgent, ToEngine

MAX_FRAME_BYTES = 256 << 20

_HEADER = struct.Struct(">I")


def _bytes(words: object) -> bytes:
    if not isinstance(words, array):
        raise TypeError(f"a {type(words).__name__} cannot be part of a message")
    return words.tobytes()


def _words(kind: type, data: bytes) -> array[int]:
    return array("I", data)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_bytes)
_TO_ENGINE: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine, dec_hook=_words)
_TO_AGENT: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(
    Ready | Refused | StepOutput | MemoryReport | BlockReport
)


def encode_frame(message: ToEngine | ToAgent) -> bytes:
    """A message as a frame with its length. Raises ValueError for more than `MAX_FRAME_BYTES`."""
    body = _ENCODER.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _HEADER.pack(len(body)) + body


def _frame_length(header: bytes | bytearray) -> int:
    (length,) = _HEADER.unpack(header[:4])
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
    return int(length)


class EngineChannel:
    """The engine's end. `receive` raises `EOFError` when the agent is gone."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._buffer = bytearray()

    def send(self, message: ToAgent) -> None:
        """Blocks while the agent's end is full. `BrokenPipeError` when it is gone."""
        self._sock.sendall(encode_frame(message))

    def receive(self, *, wait: bool, timeout_s: float | None = None) -> list[ToEngine]:
        """All messages that have arrived; with `wait` at least one, sleeping in the kernel until it comes, or until the
        time is up. Raises EOFError once the agent has closed its end."""
        messages: list[ToEngine] = []
        while True:
            self._take_frames(messages)
            must_wait = wait and not messages
            patience = None if timeout_s is None else timeout_s * 1e3
            if not self._poll.poll(patience if must_wait else 0):
                return messages
            received = self._sock.recv(1 << 18)
            if not received:
                raise EOFError("the agent closed its end")
            self._buffer += received

    def _take_frames(self, messages: list[ToEngine]) -> None:
        start, buffer = 0, self._buffer
        while len(buffer) - start >= 4:
            end = start + 4 + _frame_length(buffer[start : start + 4])
            if len(buffer) < end:
                break
            messages.append(_TO_ENGINE.decode(buffer[start + 4 : end]))
            start = end
        if start:
            del buffer[:start]


class AgentChannel:
    """The agent's end, for an asyncio loop. `receive` raises `EOFError` when the engine is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> AgentChannel:
        return cls(*await asyncio.open_connection(sock=sock))

    def send_soon(self, message: ToEngine) -> None:
        """Buffers the message; it leaves as soon as the socket takes it."""
        self._writer.write(encode_frame(message))

    async def send(self, message: ToEngine) -> None:
        self.send_soon(message)
        await self._writer.drain()

    async def receive(self) -> ToAgent:
        """The next message of the engine. Raises EOFError once the engine has closed its end."""
        try:
            header = await self._reader.readexactly(4)
            body = await self._reader.readexactly(_frame_length(header))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise EOFError("the engine closed its end") from error
        return _TO_AGENT.decode(body)

    def close(self) -> None:
        self._writer.close()
