"""The place of an answer from which it calls tools, found as the answer is written."""

from __future__ import annotations

import time

from octavo.dialects.parsing import HARMONY, TOOL_FORMATS


class CallMarks:
    """Looks for the markers that begin calls in a format of `octavo.dialects.parsing`, in the text of one sequence. It
    does not parse: a reader does, which may find that a marker was a mention. `seen_at` is the time of the first one,
    by the monotonic clock."""

    def __init__(self, tools: str) -> None:
        form = TOOL_FORMATS[tools]
        self._marks = (*form.markers, *(() if form.syntax is None else (form.syntax.trigger,)))
        if tools == HARMONY:  # the recipient stands before the channel or behind it
            self._marks = ("to=functions.",)
        self._kept = max(map(len, self._marks), default=1) - 1
        self._tail = ""
        self.seen_at: float | None = None

    def take(self, text: str) -> None:
        """More of the text."""
        if self.seen_at is not None or not text:
            return
        tail = self._tail + text
        if any(mark in tail for mark in self._marks):
            self.seen_at = time.monotonic()
        self._tail = tail[-self._kept :] if self._kept else ""
