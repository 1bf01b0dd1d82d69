"""Control tokens that users write, carried through a chat template as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

Piece = tuple[str, bool]
"""Text, and whether it is a control token's spelling that a user wrote (to be encoded as plain text)."""


class NoFence(ValueError):
    """The texts leave no characters to make a fence of."""


class Fence:
    """Puts every control token's spelling in what users wrote between two characters that occur in none of their texts.

    So it travels through the template as ordinary text, also through its `tojson`, and comes out as a piece of its own.
    `spellings` matches control tokens; None: there are none. `cut` is a character that occurs in none of the texts
    either. Raises NoFence.
    """

    def __init__(self, spellings: re.Pattern[str] | None, texts: Iterable[str]) -> None:
        self._spellings = spellings
        self._left, self._right, self.cut = _unused_characters(texts)

    def guard(self, value: Any) -> Any:
        """The same text, or the same list or object of texts at any depth, with fences."""
        if isinstance(value, str):
            return value if self._spellings is None else self._spellings.sub(self._fenced, value)
        if isinstance(value, dict):
            return {self.guard(key): self.guard(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guard(item) for item in value]
        return value

    def split(self, text: str) -> list[Piece]:
        """Pieces of a template's output for guarded texts, which concatenate to the whole. A template that cuts
        messages at a token may leave one side of its fence, which is dropped."""
        if self._spellings is None:
            return [(text, False)] if text else []
        left, right = _either_way(self._left), _either_way(self._right)
        parts = re.split(f"{left}({self._spellings.pattern}){right}", text)
        torn = re.compile(f"{left}|{right}")
        pieces = [(part, True) if n % 2 else (torn.sub("", part), False) for n, part in enumerate(parts)]
        return [piece for piece in pieces if piece[0]]

    def before_cut(self, text: str) -> str | None:
        """A template's output up to the last `cut`, which stood in one of the texts. None if the template has left that
        out."""
        found = list(re.finditer(_either_way(self.cut), text))
        return "".join(re.split(_either_way(self.cut), text[: found[-1].start()])) if found else None

    def _fenced(self, match: re.Match[str]) -> str:
        return f"{self._left}{match[0]}{self._right}"


def _either_way(character: str) -> str:
    """A pattern for it, as it is or as a template's JSON escapes it."""
    return rf"(?:{character}|\\u{ord(character):04x})"


def _unused_characters(texts: Iterable[str]) -> tuple[str, str, str]:
    used = set().union(*map(set, texts))
    free = (character for code in range(0xE000, 0xF8FF) if (character := chr(code)) not in used)
    try:
        return next(free), next(free), next(free)
    except StopIteration:
        raise NoFence("the messages use every private-use character there is") from None
