"""Mistral: `[TOOL_CALLS]` and an array of objects, or, since version 11 of its tokenizer, a name, `[ARGS]` and JSON."""

from __future__ import annotations

import re

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.calls import NAME, Tools, read_call, read_call_object, several
from octavo.dialects.parsing.source import Reading, Source

BEGIN, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_OWN_ID = re.compile(r"[a-zA-Z0-9]*")


def read_calls(source: Source, answer: Answer, _: Tools) -> Reading[bool]:
    """Either form; an object without an array too."""
    yield from source.take(BEGIN)
    yield from source.space()
    char = yield from source.char()
    if char == "{":
        return (yield from read_call_object(source, answer))
    if char == "[":
        source.skip(1)
        begun = yield from several(source, lambda: _one_of_array(source, answer))
        if begun:
            yield from source.take("]", spaced=True)
        return begun
    return (yield from _named(source, answer))


def _one_of_array(source: Source, answer: Answer) -> Reading[bool]:
    yield from source.take(",", spaced=True)
    yield from source.space()
    return (yield from read_call_object(source, answer))


def _named(source: Source, answer: Answer) -> Reading[bool]:
    name = yield from source.word(NAME)
    own_id = ""
    if (yield from source.take(ID)):
        own_id = yield from source.word(_OWN_ID)
    yield from source.take(ARGUMENTS)
    if not name or (yield from source.ahead(("{",), spaced=True)) == "":
        return False
    return (yield from read_call(source, answer, name, own_id if len(own_id) == 9 else None))
