"""The beginning of a line's prompt, in the bytes of its body: lines that share it share keys and values in a worker."""

from __future__ import annotations

import msgspec

LONGEST = 65_536  # bytes that are looked at


class _Prompt(msgspec.Struct):
    """Fields in the order in which a prompt has them."""

    tools: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


class _Line(msgspec.Struct):
    body: _Prompt


_decode = msgspec.json.Decoder(_Line).decode


def beginning(line: bytes) -> bytes:
    """The system prompt, the first user message and what follows, as they stand in the line. Nothing is parsed: lines
    of one program write equal texts alike. Empty for a line that the check of the file refuses."""
    try:
        body = _decode(line).body
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    fields = (body.tools, body.instructions, body.messages, body.prompt, body.input)
    return b"".join(bytes(memoryview(field)[:LONGEST]) for field in fields)[:LONGEST]
