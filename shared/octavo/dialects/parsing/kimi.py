"""Kimi K2: a section of calls, each with an id such as `functions.name:0` and JSON."""

from __future__ import annotations

import re

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.calls import NAME, Tools, read_call, section
from octavo.dialects.parsing.source import Reading, Source

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?P<number>:\d+)?")


def read_calls(source: Source, answer: Answer, _: Tools) -> Reading[bool]:
    """All calls of a section. A model may leave out the section's own markers."""
    return (yield from section(source, SECTION, lambda: _one(source, answer), SECTION_END))


def _one(source: Source, answer: Answer) -> Reading[bool]:
    """The id stays the model's own: its template writes ids back into the prompt, and knows no other form."""
    if not (yield from source.take(CALL, spaced=True)):
        return False
    yield from source.space()
    written = yield from source.word(NAME)
    found = _ID.fullmatch(written)
    if found is None or not (yield from source.take(ARGUMENTS, spaced=True)):
        return False
    if not (yield from read_call(source, answer, found["name"], written if found["number"] else None)):
        return False
    yield from source.take(CALL_END, spaced=True)
    return True
