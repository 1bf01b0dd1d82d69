"""The parser of one sequence: thoughts, content and calls in one machine, since each says where the others end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.dialects.parsing import harmony
from octavo.dialects.parsing.answer import Answer, Delta, Parsed, Prose, assemble
from octavo.dialects.parsing.calls import Tools
from octavo.dialects.parsing.formats import HARMONY, NONE, REASONING_FORMATS, TOOL_FORMATS, ToolFormat
from octavo.dialects.parsing.source import Reading, Source
from octavo.dialects.parsing.thoughts import Thoughts


class Parser:
    """Takes the text of a sequence in pieces and gives deltas.

    The sum of all deltas depends on the text alone, not on the pieces: a reader that begins again parses again, to the
    same end. Nothing that a model writes is an error. What only looks like a call is content. A call counts once its
    name was read and its arguments begin; if it breaks off later, its arguments stay cut, and text behind it is
    content. Arguments are the model's own text: they may be invalid JSON.

    `tools` and `reasoning` name formats (KeyError for an unknown one); `schemas` are the parameters of the tools.
    `opened` says that the prompt ended inside a thought. `job_id` and `sequence` make the ids of the calls.
    """

    def __init__(
        self,
        tools: str = NONE,
        reasoning: str = NONE,
        *,
        job_id: str = "",
        sequence: int = 0,
        schemas: Tools | None = None,
        opened: bool = False,
    ) -> None:
        form, thoughts = TOOL_FORMATS[tools], REASONING_FORMATS[reasoning]
        self._source = Source()
        self._answer = Answer(
            lambda call: form.call_id(job_id, sequence, call), holds_space={tools, reasoning} != {NONE}
        )
        if HARMONY in (tools, reasoning):
            self._machine = harmony.read_answer(self._source, self._answer, schemas or {})
        else:
            self._machine = _Machine(self._source, self._answer, form, thoughts, schemas or {}).read(opened)

    def watch_content(self, found: Callable[[int, int], None]) -> None:
        """Have `found(start, end)` called with the place of each piece of content in the whole text."""
        source = self._source
        self._answer.content.watch = lambda length: found(source.offset - length, source.offset)

    @property
    def decided(self) -> int:
        """Characters of the text of which it is certain what they are."""
        return self._source.decided

    def feed(self, text: str) -> list[Delta]:
        """The deltas that more text makes certain."""
        self._source.feed(text)
        next(self._machine, None)
        return self._answer.take()

    def finish(self) -> list[Delta]:
        """The deltas that were held back. The text has ended, for whatever reason."""
        self._source.close()
        next(self._machine, None)
        self._answer.end()
        return self._answer.take()

    def parse(self, pieces: Iterable[str]) -> Parsed:
        """The sum of all deltas of a whole text. The parser is used up by it."""
        deltas = [delta for piece in pieces for delta in self.feed(piece)]
        return assemble([*deltas, *self.finish()])


class _Machine:
    """Every format but harmony's: at most one thought, or several, around content with calls in it."""

    def __init__(
        self, source: Source, answer: Answer, form: ToolFormat, thoughts: Thoughts | None, tools: Tools
    ) -> None:
        self._source = source
        self._answer = answer
        self._form = form
        self._thoughts = thoughts
        self._tools = tools
        self._thought_markers = (thoughts.begin,) if thoughts is not None and thoughts.anywhere else ()

    def read(self, opened: bool) -> Reading[None]:
        """The whole answer. `opened`: it begins inside a thought."""
        if self._thoughts is not None:
            begun = yield from self._source.take(self._thoughts.begin, spaced=True)
            if begun or opened:
                yield from self._read_thought(self._thoughts)
        if (yield from self._source.ahead(self._form.leading, spaced=True)):
            yield from self._try_calls("", self._answer.content)
        content = self._answer.content
        markers = (*self._thought_markers, *self._form.markers)
        while marker := (yield from self._source.pass_until(markers, content.add)):
            if self._thoughts is not None and marker in self._thought_markers:
                self._source.skip(len(marker))
                yield from self._read_thought(self._thoughts)
            else:
                yield from self._try_calls(marker, content)

    def _read_thought(self, thoughts: Thoughts) -> Reading[None]:
        reasoning = self._answer.reasoning
        self._answer.content.seam()
        reasoning.seam(apart=True)
        inside = self._form.markers if self._form.inside_thoughts else ()
        while marker := (yield from self._source.pass_until((thoughts.end, *inside), reasoning.add)):
            if marker == thoughts.end:
                self._source.skip(len(marker))
                break
            if (yield from self._try_calls(marker, reasoning)):
                break
        reasoning.seam()

    def _try_calls(self, marker: str, prose: Prose) -> Reading[bool]:
        """The calls whose marker stands here. If there are none, the marker is a part of the prose."""
        self._source.mark()
        found = yield from self._form.read_calls(self._source, self._answer, self._tools)
        if found:
            self._source.commit()
        else:
            self._source.back()
            prose.add(self._source.skip(len(marker)))
        return found
