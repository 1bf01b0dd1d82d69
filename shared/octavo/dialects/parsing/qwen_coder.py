"""Qwen 3 Coder: `<function=name>` and `<parameter=key>` tags inside `<tool_call>`, values as plain text."""

from __future__ import annotations

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.calls import NAME, Tools
from octavo.dialects.parsing.source import Reading, Source
from octavo.dialects.parsing.tagged import Tags, pass_arguments

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
TAGS = Tags("<parameter=", (">",), "</parameter>", (FUNCTION_END, END), on_lines=True)


def read_calls(source: Source, answer: Answer, tools: Tools) -> Reading[bool]:
    """One call. Models of this family at times leave out `<tool_call>`."""
    yield from source.take(BEGIN)
    if not (yield from source.take(FUNCTION, spaced=True)):
        return False
    name = yield from source.word(NAME)
    if not name or not (yield from source.take(">")):
        return False
    if not (yield from source.ahead(TAGS.follows, spaced=True)):
        return False
    source.commit()
    answer.begin_call(name)
    yield from pass_arguments(source, answer, TAGS, tools.get(name))
    return True
