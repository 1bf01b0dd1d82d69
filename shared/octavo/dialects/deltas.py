"""Deltas of one answer, token by token, as a reader gets to know them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.events import chunks_of_one
from octavo.dialects.parsing import Delta
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
            more = one if one.finish_reason is None else self._without_stop(one)
            for delta in self._parser.feed(replace(more, finish_reason=None)):
                take(delta)
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.end(take)

    def end(self, take: Callable[[Delta], None]) -> None:
        """No more tokens will come, whether the sequence is complete or not."""
        if not self._finished:
            self._finished = True
            for delta in self._parser.finish():
                take(delta)

    def _without_stop(self, last: Chunk) -> Chunk:
        found = max((stop for stop in self._stop if last.text.endswith(stop)), key=len, default=None)
        if last.finish_reason != "stop" or found is None:
            return last
        self.stopped_by = found
        return replace(last, texts=(last.text.removesuffix(found),))
