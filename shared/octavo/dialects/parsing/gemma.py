"""Gemma: `call:name{key:value,...}`, close to JSON, with bare keys and strings between markers of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.calls import NAME, Tools
from octavo.dialects.parsing.json_text import escaped, pass_string, quoted, read_string
from octavo.dialects.parsing.source import Reading, Source
from octavo.dialects.parsing.typed import value_of

_CALL = "call:"
_BARE_KEY = re.compile(r"[^\s:,\"{}\[\]<]*")
_BARE_VALUE = re.compile(r"[^,\"{}\[\]<]*")
_CLOSING = {"{": "}", "[": "]"}
_DEEPEST = 64


@dataclass(frozen=True)
class Gemma:
    """The markers of one generation of the family."""

    begin: str
    end: str
    quote: str

    def read_calls(self, source: Source, answer: Answer, _: Tools) -> Reading[bool]:
        """One call."""
        yield from source.take(self.begin)
        if not (yield from source.take(_CALL, spaced=True)):
            return False
        name = yield from source.word(NAME)
        if not name or (yield from source.char()) != "{":
            return False
        source.commit()
        answer.begin_call(name)
        if (yield from self._pass_value(source, answer, _DEEPEST)):
            yield from source.take(self.end, spaced=True)
        return True

    def _pass_value(self, source: Source, answer: Answer, depth: int) -> Reading[bool]:
        """Give out a value as JSON. False if it breaks off, or is nested deeper than any tool would have it."""
        if (yield from source.take(self.quote)):
            return (yield from self._pass_quoted(source, answer))
        char = yield from source.char()
        if char == '"':
            return (yield from pass_string(source, answer.arguments))
        if char in _CLOSING:
            return depth > 0 and (yield from self._pass_members(source, answer, depth))
        bare = yield from source.word(_BARE_VALUE)
        if bare.strip():
            answer.arguments(value_of(bare.strip(), frozenset()))
        return bool(bare.strip())

    def _pass_members(self, source: Source, answer: Answer, depth: int) -> Reading[bool]:
        opening = source.skip(1)
        closing = _CLOSING[opening]
        answer.arguments(opening)
        separator = ""
        while True:
            source.mark()
            if separator:
                yield from source.take(",", spaced=True)
            if (yield from source.take(closing, spaced=True)):
                source.commit()
                answer.arguments(closing)
                return True
            yield from source.space()
            if closing == "}":
                key = yield from self._read_key(source)
                if key is None:
                    source.back()
                    return False
                answer.arguments(f"{separator}{quoted(key)}: ")
            else:
                answer.arguments(separator)
            source.commit()
            if not (yield from self._pass_value(source, answer, depth - 1)):
                return False
            separator = ", "

    def _read_key(self, source: Source) -> Reading[str | None]:
        """A key and its colon. None if there is none."""
        key: str | None
        if (yield from source.take(self.quote)):
            pieces: list[str] = []
            found = yield from source.pass_until((self.quote,), pieces.append)
            source.skip(len(found))
            key = "".join(pieces)
        elif (yield from source.char()) == '"':
            key = yield from read_string(source)
        else:
            key = yield from source.word(_BARE_KEY)
        if not key or not (yield from source.take(":", spaced=True)):
            return None
        yield from source.space()
        return key

    def _pass_quoted(self, source: Source, answer: Answer) -> Reading[bool]:
        answer.arguments('"')
        end = yield from source.pass_until((self.quote,), lambda text: answer.arguments(escaped(text)))
        if end:
            source.skip(len(end))
            answer.arguments('"')
        return bool(end)


GEMMA_4 = Gemma("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = Gemma("<start_function_call>", "<end_function_call>", "<escape>")
