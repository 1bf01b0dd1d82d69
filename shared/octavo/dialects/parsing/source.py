"""The text of one sequence as it arrives, and the ways to read it.

What reads it is a generator that yields wherever the text so far does not decide. So a format is written down in the
order of its parts, and where the text was cut into pieces cannot matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Something that is being read. It waits for more text at every yield and returns what it found."""

Emit = Callable[[str], None]
"""Takes text that is certain."""

_SPACE = re.compile(r"\s*")


class Source:
    """Text, a position in it, and at most one mark to go back to. What lies before both is forgotten."""

    def __init__(self) -> None:
        self._text = ""
        self._forgotten = 0
        self._position = 0
        self._mark: int | None = None
        self._closed = False

    def feed(self, piece: str) -> None:
        """More text."""
        start = self._position if self._mark is None else self._mark
        self._text = self._text[start:] + piece
        self._forgotten += start
        self._position -= start
        self._mark = None if self._mark is None else 0

    @property
    def offset(self) -> int:
        """Characters of the whole text before this position."""
        return self._forgotten + self._position

    @property
    def decided(self) -> int:
        """Characters that no reading returns to."""
        return self._forgotten + (self._position if self._mark is None else self._mark)

    def close(self) -> None:
        """No more text will come: from here on no reading waits."""
        self._closed = True

    def mark(self) -> None:
        """Remember this position, in place of an earlier one."""
        self._mark = self._position

    def back(self) -> None:
        """Return to the mark, if there is one."""
        self._position = self._position if self._mark is None else self._mark
        self._mark = None

    def commit(self) -> None:
        """Forget the mark: there is no way back."""
        self._mark = None

    def skip(self, characters: int) -> str:
        """Pass over text that is known to be there."""
        start = self._position
        self._position += characters
        return self._text[start : self._position]

    def char(self) -> Reading[str]:
        """The next character, which stays; empty at the end of the text."""
        while self._position == len(self._text) and not self._closed:
            yield
        return self._text[self._position : self._position + 1]

    def run(self, pattern: re.Pattern[str]) -> str:
        """As much as `pattern`, which matches the empty string too, takes of the text that is there."""
        found = pattern.match(self._text, self._position)
        return self.skip(len(found[0])) if found else ""

    def word(self, pattern: re.Pattern[str]) -> Reading[str]:
        """As much as `pattern` takes, up to a character that it does not take. `pattern` describes single characters,
        any number of them."""
        parts = []
        while (yield from self.char()) and (part := self.run(pattern)):
            parts.append(part)
        return "".join(parts)

    def space(self) -> Reading[None]:
        """Pass over white space."""
        yield from self.word(_SPACE)

    def ahead(self, literals: Sequence[str], *, offset: int = 0, spaced: bool = False) -> Reading[str]:
        """The one of `literals` that stands `offset` characters from here (`spaced`: behind white space), or an empty
        string. None of them begins another."""
        while True:
            at = self._position + offset
            if spaced and (space := _SPACE.match(self._text, at)):
                at = space.end()
            for literal in literals:
                if self._text.startswith(literal, at):
                    return literal
            left = len(self._text) - at
            may_come = any(left < len(literal) and literal.startswith(self._text[at:]) for literal in literals)
            if self._closed or not may_come:
                return ""
            yield

    def take(self, literal: str, *, spaced: bool = False) -> Reading[bool]:
        """Pass over `literal` if it stands here (`spaced`: and over white space before it); else stay."""
        if not (yield from self.ahead((literal,), spaced=spaced)):
            return False
        self._position = self._text.index(literal, self._position) + len(literal)
        return True

    def closes(self, end: str, follows: Sequence[str]) -> Reading[bool]:
        """True if `end`, which stands here, is an end, and not a part of the text that it ends: white space and one of
        `follows` come after it, or the text ends before that could be seen."""
        if (yield from self.ahead(follows, offset=len(end), spaced=True)):
            return True
        rest = self._text[self._position + len(end) :].lstrip() if self._closed else "\0"
        return any(literal.startswith(rest) for literal in follows)

    def pass_until(self, literals: Sequence[str], emit: Emit) -> Reading[str]:
        """Emit the text before the first of `literals`, which stays and is returned; empty at the end of the text.

        Held back is the longest end of the text that may begin one of them.
        """
        pattern, beginning = _patterns(tuple(literals))
        while True:
            found = pattern.search(self._text, self._position)
            if found is None and not self._closed:
                held = beginning.search(self._text, self._position)
                end = held.start() if held is not None else len(self._text)
            else:
                end = found.start() if found is not None else len(self._text)
            if end > self._position:
                emit(self.skip(end - self._position))
            if found is not None:
                return found[0]
            if self._closed:
                return ""
            yield


@lru_cache(maxsize=256)
def _patterns(literals: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """One for any of `literals`, and one for the beginning of any at the end of a text."""
    whole = "|".join(map(re.escape, literals)) or "(?!)"
    begun = "|".join("(?:".join(map(re.escape, literal)) + ")?" * (len(literal) - 1) for literal in literals) or "(?!)"
    return re.compile(whole), re.compile(rf"(?:{begun})\Z")
