"""Hermes, Qwen 2.5 and Qwen 3: `<tool_call>`, an object with name and arguments, `</tool_call>`."""

from __future__ import annotations

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.calls import Tools, read_call_object, several
from octavo.dialects.parsing.source import Reading, Source

BEGIN, END = "<tool_call>", "</tool_call>"


def read_calls(source: Source, answer: Answer, _: Tools) -> Reading[bool]:
    """One object, or several that a model put between the same tags."""
    yield from source.take(BEGIN)
    begun = yield from several(source, lambda: _one(source, answer))
    if begun:
        yield from source.take(END, spaced=True)
    return begun


def _one(source: Source, answer: Answer) -> Reading[bool]:
    yield from source.space()
    return (yield from read_call_object(source, answer))
