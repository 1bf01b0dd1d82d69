"""Parsing of a job's answer: content, reasoning and calls of tools, by the formats in its chunks."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.dialects.parsing import (
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
from octavo.terms.messages import AnswerFormat, Chunk
from octavo.terms.models import Result
from octavo.terms.tools import Tool


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
        """Deltas that more text of a sequence makes certain; all that are left with its last chunk."""
        return self._feed(chunk.index, chunk.text, chunk.format, is_last=chunk.finish_reason is not None)

    def finish(self, index: int = 0) -> list[Delta]:
        """Remaining deltas of a sequence that ended without its last chunk."""
        return self._feed(index, "", None, is_last=True)

    def parse(self, chunks: Iterable[Chunk]) -> Parsed:
        """The sum of all deltas of one sequence whose stream has ended, however it did. Its text is used up by it."""
        chunks = list(chunks)
        index, form = (chunks[0].index, chunks[0].format) if chunks else (0, None)
        return assemble(self._feed(index, "".join(chunk.text for chunk in chunks), form, is_last=True))

    def parse_result(self, result: Result) -> list[Parsed]:
        """All sequences of a job that has ended."""
        return [
            assemble(self._feed(sequence.index, sequence.text, sequence.format, is_last=True))
            for sequence in result.sequences
        ]

    def _feed(self, index: int, text: str, form: AnswerFormat | None, *, is_last: bool) -> list[Delta]:
        if index not in self._parsers:
            self._parsers[index] = self._new_parser(index, form or AnswerFormat())
        parser = self._parsers[index]
        if parser is None:
            return [ContentDelta(text)] if text else []
        deltas = parser.feed(text)
        if is_last:
            deltas += parser.finish()
        return deltas if self._parallel else [delta for delta in deltas if not _is_another_call(delta)]

    def _new_parser(self, index: int, form: AnswerFormat) -> Parser | None:
        tools = form.tools if form.tools in TOOL_FORMATS else NONE  # a later version's are text
        reasoning = form.reasoning if form.reasoning in REASONING_FORMATS else NONE
        if {tools, reasoning} == {NONE}:
            return None
        return Parser(
            tools,
            reasoning,
            job_id=self._job_id,
            sequence=index,
            schemas=self._schemas,
            opened=form.opened,
        )


def _is_another_call(delta: Delta) -> bool:
    return isinstance(delta, CallDelta) and delta.index > 0
