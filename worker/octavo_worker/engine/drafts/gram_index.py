"""Where the last tokens of a text occurred before."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

WORD = array("I").itemsize
OCCURRENCES = 16
"""Latest occurrences of a run of the least length that are looked at: common ones occur all the time."""


@dataclass(frozen=True, slots=True)
class Match:
    """The last `length` tokens of a text end before `position`, too."""

    position: int
    length: int


class GramIndex:
    """Knows where runs of `least` to `most` tokens of a text occurred before, and were followed by another.

    One table has the last place of each run of `least` tokens, and each place the one before it with the same run:
    longer runs are found by comparing the text at those places, the last `OCCURRENCES` of them. So a token costs the
    same whatever lengths there are, and is cheap, as most are never asked about.

    The beginning of the text is indexed at once and never changed, so forks share its table. Of it, and of what is
    appended, the last `window` places each are known.
    """

    __slots__ = ("_before", "_begun", "_first", "_own", "_shared", "_window", "least", "most", "text")

    def __init__(self, beginning: Sequence[int], *, least: int, most: int, window: int) -> None:
        """Raises ValueError for lengths or a window that find nothing."""
        if not 1 <= least <= most:
            raise ValueError(f"runs of {least} to {most} tokens are none")
        if window < 1:
            raise ValueError("an index of no places finds nothing")
        self.least, self.most = least, most
        self.text = array("I", beginning)
        self._window = window
        self._begun = self._first = len(self.text)  # of the places that were appended and are still known
        self._before = array(
            "I", bytes(WORD * self._begun)
        )  # each place: the last one before it with the same run, or 0
        self._shared: dict[bytes, int] = {}
        self._own: dict[bytes, int] = {}
        self._add(self._shared, max(0, self._begun - window))

    def _add(self, known: dict[bytes, int], first: int) -> None:
        """Take note of the places from `first` on."""
        first, end = max(self.least, first), len(self.text)
        text, width = self.text[first - self.least : end].tobytes(), WORD * self.least
        before, shared = self._before, self._shared
        for place, at in zip(range(first, end), range(0, len(text), WORD), strict=False):
            run = text[at : at + width]
            before[place] = known.get(run) or shared.get(run) or 0
            known[run] = place

    def append(self, tokens: Sequence[int]) -> None:
        first = len(self.text)
        self.text.extend(tokens)
        self._before.frombytes(bytes(WORD * len(tokens)))
        self._add(self._own, first)
        while len(self.text) - self._first > self._window:
            self._forget(self._first)
            self._first += 1

    def _forget(self, place: int) -> None:
        """Drop what is known of a place, unless the same run has occurred since."""
        run = self.text[max(0, place - self.least) : place].tobytes()
        if self._own.get(run) == place:
            del self._own[run]

    def find(self) -> Match | None:
        """The latest occurrence of the longest run that the text ends in and that occurred before."""
        text, end, best = self.text, len(self.text), 0
        run = text[max(0, end - self.least) :].tobytes()
        place, found = self._own.get(run) or self._shared.get(run), None
        for _ in range(OCCURRENCES):
            if not place or best == self.most:
                break
            length = self.least
            while length < min(self.most, place) and text[place - 1 - length] == text[end - 1 - length]:
                length += 1
            if length > best:
                best, found = length, Match(place, length)
            place = self._before[place]
            if self._begun <= place < self._first:  # forgotten, and so are those before it, back to the beginning
                place = self._shared.get(run, 0)
        return found

    def widen(self, match: Match, most: int) -> Match:
        """The match with its whole length, as far as that is below `most`."""
        text, end, place = self.text, len(self.text), match.position
        lengths = range(match.length + 1, min(most, place) + 1)
        more = bisect_left(lengths, True, key=lambda n: text[end - n : end] != text[place - n : place])
        return Match(place, match.length + more)

    def after(self, match: Match, count: int) -> array[int]:
        """`count` tokens that follow a match. What reaches the end of the text repeats: a loop goes on."""
        tokens = self.text[match.position : match.position + count]
        return (tokens * -(-count // len(tokens)))[:count]

    def fork(self) -> GramIndex:
        twin = object.__new__(GramIndex)
        twin.least, twin.most, twin._window = self.least, self.most, self._window
        twin.text, twin._before = self.text[:], self._before[:]
        twin._begun, twin._first = self._begun, self._first
        twin._shared, twin._own = self._shared, self._own.copy()
        return twin
