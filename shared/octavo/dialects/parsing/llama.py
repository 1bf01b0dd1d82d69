"""Llama 3: a bare object with name and parameters, or several with `;` between, perhaps behind `<|python_tag|>`."""

from __future__ import annotations

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.calls import Tools, read_call_object, several
from octavo.dialects.parsing.source import Reading, Source

TAG = "<|python_tag|>"
BARE = "{"


def read_calls(source: Source, answer: Answer, tools: Tools) -> Reading[bool]:
    """An answer may be JSON without being a call: the name must be that of a tool, if tools are known."""
    yield from source.take(TAG)
    return (yield from several(source, lambda: _one(source, answer, tools)))


def _one(source: Source, answer: Answer, tools: Tools) -> Reading[bool]:
    yield from source.take(";", spaced=True)
    yield from source.space()
    return (yield from read_call_object(source, answer, lambda name: bool(name) and (not tools or name in tools)))
