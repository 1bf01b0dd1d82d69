"""DeepSeek: R1 and V3 write the name on a line and the arguments as a fenced block; V3.1 writes both bare."""

from __future__ import annotations

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.calls import NAME, Tools, read_call, section
from octavo.dialects.parsing.source import Reading, Source

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
KIND = "function"
FENCE, FENCE_END = "```json", "```"


def read_calls(source: Source, answer: Answer, _: Tools) -> Reading[bool]:
    """All calls of a section, in either form. A model may leave out the section's own markers."""
    return (yield from section(source, SECTION, lambda: _one(source, answer), SECTION_END))


def _one(source: Source, answer: Answer) -> Reading[bool]:
    if not (yield from source.take(CALL, spaced=True)):
        return False
    yield from source.space()
    name = yield from source.word(NAME)
    if not (yield from source.take(SEPARATOR, spaced=True)):
        return False
    yield from source.space()
    if name == KIND and (yield from source.char()) != "{":
        name = yield from source.word(NAME)
        yield from source.take(FENCE, spaced=True)
    if not name or not (yield from read_call(source, answer, name)):
        return False
    yield from source.take(FENCE_END, spaced=True)
    yield from source.take(CALL_END, spaced=True)
    return True
