"""Where the last tokens of a text occurred before."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

WORD = array("I").itemsize


@dataclass(frozen=True, slots=True)
class Match:
    """The last `length` tokens of a text end before `position`, too."""

    position: int
    length: int


class GramIndex:
    """Knows of each run of `least` to `most` tokens of a text where it occurred last, and was followed by another.

    The beginning of the text is indexed at once and never changed, so forks share it. Of it, and of what is appended,
    the last `window` places each are known. A token costs as much as there are lengths.
    """

    __slots__ = ("_first", "_own", "_shared", "_window", "least", "most", "text")

    def __init__(self, beginning: Sequence[int], *, least: int, most: int, window: int) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"runs of {least} to {most} tokens are none")
        if window < 1:
            raise ValueError("an index of no places finds nothing")
        self.least, self.most = least, most
        self.text = array("I", beginning)
        self._window = window
        self._first = len(self.text)  # of the places that were appended and are still known
        self._shared = [self._index(length) for length in range(least, most + 1)]
        self._own: list[dict[bytes, int]] = [{} for _ in self._shared]

    def _index(self, length: int) -> dict[bytes, int]:
        text = self.text.tobytes()
        places = range(max(length, len(self.text) - self._window), len(self.text))
        return {text[WORD * (place - length) : WORD * place]: place for place in places}

    def append(self, tokens: Sequence[int]) -> None:
        text = self.text
        for token in tokens:
            place = len(text)
            tail = text[max(0, place - self.most) : place].tobytes()
            for length, own in enumerate(self._own, self.least):
                if length <= place:
                    own[tail[-WORD * length :]] = place
            text.append(token)
            if len(text) - self._first > self._window:
                self._forget(self._first)
                self._first += 1

    def _forget(self, place: int) -> None:
        """Drop what is known of a place, unless the same run has occurred since."""
        for length, own in enumerate(self._own, self.least):
            run = self.text[max(0, place - length) : place].tobytes()
            if own.get(run) == place:
                del own[run]

    def find(self) -> Match | None:
        """The latest occurrence of the longest run that the text ends in and that occurred before."""
        tail = self.text[-self.most :].tobytes()
        for length in range(min(self.most, len(tail) // WORD), self.least - 1, -1):
            run, at = tail[-WORD * length :], length - self.least
            place = self._own[at].get(run) or self._shared[at].get(run)
            if place is not None:
                return Match(place, length)
        return None

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
        twin.text, twin._first = self.text[:], self._first
        twin._shared, twin._own = self._shared, [own.copy() for own in self._own]
        return twin
