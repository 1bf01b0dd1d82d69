"""Strings that end a text, found while it comes in pieces. Functions of the text alone: a takeover replays them."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.parsing.parser import Parser


class StopStrings:
    """Holds back text that may turn out to begin a stop string.

    The string that is complete first wins, wherever the pieces are cut; of two that end together, the longer.
    """

    def __init__(self, stop: Sequence[str], *, include: bool = False) -> None:
        self._stop = tuple(stop)
        self._include = include
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self.hit = False

    def pass_by(self, text: str) -> str:
        """Text that takes no part."""
        return text

    def feed(self, text: str) -> str:
        """The text that is certain now. Sets `hit` when a stop string is complete; nothing follows it."""
        text = self._held + text
        ends = [(start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0]
        if ends:
            end, start = min(ends)
            self.hit, self._held = True, ""
            return text[: end if self._include else start]
        certain = len(text) - self._uncertain(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """The text that was held back and began no stop string."""
        held, self._held = self._held, ""
        return held

    def _uncertain(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0


class AnswerStops:
    """`StopStrings` of the content that `parser` finds in an answer: not of thoughts, of calls, of markers, nor of the
    white space where one of those ends. A stop string lies within one piece of content.

    Text is held back as well while it is open what it is: whether a call begins, for example.
    """

    def __init__(self, stop: Sequence[str], parser: Parser, *, include: bool = False) -> None:
        self._stops = StopStrings(stop, include=include)
        self._parser = parser
        parser.watch_content(self._look)
        self._held = ""
        self._given = 0  # characters of the answer before `_held`
        self._end = 0  # of the last piece of content
        self._certain = 0  # where a stop string may begin in it, or where the text is cut

    @property
    def hit(self) -> bool:
        """A stop string is complete; nothing follows it."""
        return self._stops.hit

    def pass_by(self, text: str) -> str:
        """Text that takes no part."""
        self._given += len(text)
        self._parser.feed(text)
        return text

    def feed(self, text: str) -> str:
        """The text that is certain now."""
        self._held += text
        self._parser.feed(text)
        return self._take(self._parser.decided)

    def flush(self) -> str:
        """The text that was held back and holds no stop string. No more will come."""
        self._parser.finish()
        end = self._given + len(self._held)
        text = self._take(end)
        return text if self.hit else text + self._held

    def _look(self, start: int, end: int) -> None:
        """A piece of content."""
        start = max(start, self._given)
        if self.hit or start >= end:
            return
        if start != self._end:
            self._stops.flush()
            self._certain = start
        self._end = end
        self._certain += len(self._stops.feed(self._held[start - self._given : end - self._given]))

    def _take(self, decided: int) -> str:
        """The certain part of the text up to `decided`."""
        certain = self._certain if self.hit or self._end == decided else decided
        count = max(0, certain - self._given)
        text, self._held = self._held[:count], self._held[count:]
        self._given += count
        return text
