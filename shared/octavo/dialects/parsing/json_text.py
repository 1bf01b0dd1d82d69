"""JSON that is passed on as it was written, piece by piece: only its brackets and strings are looked at."""

from __future__ import annotations

import json
import re

from octavo.dialects.parsing.source import Emit, Reading, Source

_PLAIN = re.compile(r'[^"{}\[\]]*')
_IN_STRING = re.compile(r'(?:[^"\\]+|\\.)*', re.DOTALL)
_SCALAR = re.compile(r'[^\s,"{}\[\]<]*')
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_CLOSING = {"{": "}", "[": "]"}


def pass_value(source: Source, emit: Emit) -> Reading[bool]:
    """Emit the value that begins here. False if it breaks off, at a bracket that closes another one or at the end of
    the text; the source then stands behind what was emitted."""
    char = yield from source.char()
    if char in _CLOSING:
        return (yield from _pass_nested(source, emit))
    if char == '"':
        return (yield from pass_string(source, emit))
    text = yield from source.word(_SCALAR)
    if text:
        emit(text)
    return bool(text)


def pass_string(source: Source, emit: Emit) -> Reading[bool]:
    """The same for the string whose quotation mark stands here."""
    emit(source.skip(1))
    while char := (yield from source.char()):
        if char == '"':
            emit(source.skip(1))
            return True
        emit(source.run(_IN_STRING) or source.skip(1) + ((yield from source.char()) and source.skip(1)))
    return False


def read_string(source: Source) -> Reading[str | None]:
    """The string that begins here, decoded. None if it is none, or breaks off."""
    if (yield from source.char()) != '"':
        return None
    pieces: list[str] = []
    if not (yield from pass_string(source, pieces.append)):
        return None
    return decoded("".join(pieces))


def decoded(text: str) -> str | None:
    """The text that a JSON string stands for. None if it is none, or has half a surrogate pair. Line breaks may stand
    in it as they are."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) and not _HALF_PAIR.search(value) else None


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A part of a JSON string."""
    return quoted(text)[1:-1]


def _pass_nested(source: Source, emit: Emit) -> Reading[bool]:
    closing: list[str] = []
    while char := (yield from source.char()):
        if char == '"':
            if not (yield from pass_string(source, emit)):
                return False
        elif char in _CLOSING:
            closing.append(_CLOSING[char])
            emit(source.skip(1))
        elif char in "}]":
            if char != closing.pop():
                return False
            emit(source.skip(1))
            if not closing:
                return True
        else:
            emit(source.run(_PLAIN))
    return False
