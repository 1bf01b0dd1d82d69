"""GLM 4.5 and later: the name, then `<arg_key>` and `<arg_value>` tags, inside `<tool_call>`."""

from __future__ import annotations

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.calls import NAME, Tools
from octavo.dialects.parsing.source import Reading, Source
from octavo.dialects.parsing.tagged import Tags, pass_arguments

BEGIN, END = "<tool_call>", "</tool_call>"
TAGS = Tags("<arg_key>", ("</arg_key>", "<arg_value>"), "</arg_value>", (END,), on_lines=False)


def read_calls(source: Source, answer: Answer, tools: Tools) -> Reading[bool]:
    """One call, with or without line breaks between its tags."""
    yield from source.take(BEGIN)
    yield from source.space()
    name = yield from source.word(NAME)
    if not name or not (yield from source.ahead(TAGS.follows, spaced=True)):
        return False
    source.commit()
    answer.begin_call(name)
    yield from pass_arguments(source, answer, TAGS, tools.get(name))
    return True
