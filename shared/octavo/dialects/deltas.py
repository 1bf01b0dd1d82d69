"""Deltas of one answer, token by token, as a reader gets to know them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.events import chunks_of_one
from octavo.dialects.parsing import ContentDelta, Delta
from octavo.terms.messages import Chunk, FinishReason


class AnswerReader:
    """The deltas that `parser` makes of a job with one sequence. They depend on its tokens alone, not on how its log is
    cut into chunks: a reader that begins again gets the same.

    With `stop`, strings that end an answer and come with its last token, `stopped_by` is the one that did; it is no
    part of the answer.
    """

    def __init__(self, parser: AnswerParser, stop: Sequence[str] = ()) -> None:
        self._parser = parser
        self._stop = stop
        self._finished = False
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | None = None

    def add(self, chunk: Chunk, take: Callable[[Delta], None]) -> None:
        """`take` is called with each delta of the chunk."""
        for one in chunks_of_one(chunk):
            deltas = self._parser.feed(one)
            if one.finish_reason is not None:
                self._finished, self.finish_reason = True, one.finish_reason
                deltas = self._without_stop(deltas)
            for delta in deltas:
                take(delta)
        self.finish_reason = chunk.finish_reason or self.finish_reason

    def end(self, take: Callable[[Delta], None]) -> None:
        """No more tokens will come, whether the sequence is complete or not."""
        if not self._finished:
            self._finished = True
            for delta in self._parser.finish():
                take(delta)

    def _without_stop(self, last: list[Delta]) -> list[Delta]:
        """The deltas of the last token. Only content is ended by a stop string."""
        tail = list(takewhile(lambda delta: isinstance(delta, ContentDelta), reversed(last)))
        said = "".join(delta.text for delta in reversed(tail) if isinstance(delta, ContentDelta))
        found = max((stop for stop in self._stop if said.endswith(stop)), key=len, default=None)
        if self.finish_reason != "stop" or found is None:
            return last
        self.stopped_by = found
        rest = said.removesuffix(found)
        return [*last[: len(last) - len(tail)], *([ContentDelta(rest)] if rest else [])]
