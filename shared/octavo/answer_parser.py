"""What a job generated, taken apart: content, reasoning and calls of tools, as the formats in its chunks say."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.messages import AnswerFormat, Chunk
from octavo.parsing import (
    NONE,
    REASONING_FORMATS,
    TOOL_FORMATS,
    CallDelta,
    ContentDelta,
    Delta,
    Parsed,
    Parser,
    assemble,
)
from octavo.tools import Tool


class AnswerParser:
    """Takes the chunks of one job, in the order of its stream and from its first token on, and gives deltas.

    What it gives depends on the stream alone, not on how it was cut: readers that begin again, and others, get the same
    calls with the same ids. `tools` are those of the request. Without `parallel` only the first call of a sequence
    counts.
    """

    def __init__(self, job_id: str, tools: Iterable[Tool] = (), *, parallel: bool = True) -> None:
        self._job_id = job_id
        self._schemas = {tool.name: tool.schema_of_parameters for tool in tools}
        self._parallel = parallel
        self._parsers: dict[int, Parser | None] = {}

    def feed(self, chunk: Chunk) -> list[Delta]:
        """What more text of a sequence makes certain; all that is left with its last chunk."""
        if chunk.index not in self._parsers:
            self._parsers[chunk.index] = self._new_parser(chunk)
        parser = self._parsers[chunk.index]
        if parser is None:
            return [ContentDelta(chunk.text)] if chunk.text else []
        deltas = parser.feed(chunk.text)
        if chunk.finish_reason is not None:
            deltas += parser.finish()
        return deltas if self._parallel else [delta for delta in deltas if not _is_another_call(delta)]

    def parse(self, chunks: Iterable[Chunk]) -> Parsed:
        """The sum of all deltas of one sequence whose stream has ended, however it did. Its text is used up by it."""
        deltas, index = [], 0
        for chunk in chunks:
            deltas += self.feed(chunk)
            index = chunk.index
        if (parser := self._parsers.get(index)) is not None:
            deltas += parser.finish()
        return assemble(deltas)

    def _new_parser(self, first: Chunk) -> Parser | None:
        form = first.format or AnswerFormat()
        tools = form.tools if form.tools in TOOL_FORMATS else NONE  # a later version's are text
        reasoning = form.reasoning if form.reasoning in REASONING_FORMATS else NONE
        if {tools, reasoning} == {NONE}:
            return None
        return Parser(
            tools,
            reasoning,
            job_id=self._job_id,
            sequence=first.index,
            schemas=self._schemas,
            opened=form.opened,
        )


def _is_another_call(delta: Delta) -> bool:
    return isinstance(delta, CallDelta) and delta.index > 0
