"""Measuring of thoughts: where a text is inside of one, and what closes it, for a limit on thoughts."""

from __future__ import annotations

import re

from octavo.dialects.parsing import harmony
from octavo.dialects.parsing.formats import HARMONY, NONE, REASONING_FORMATS, TOOL_FORMATS

_LONGEST = 512
"""Characters that are kept to find a marker in."""

_HARMONY_BEGIN = re.compile(
    rf"{re.escape(harmony.CHANNEL)}\s*analysis(?![^<]*\bto=)[^<]{{0,64}}{re.escape(harmony.MESSAGE)}"
)
_HARMONY_END = re.compile("|".join(map(re.escape, (harmony.END, harmony.START, harmony.CHANNEL, harmony.CALL))))


class ThoughtMeter:
    """Follows a text that comes in pieces, and says whether it is `inside` a thought. The names are those of the
    formats (KeyError for an unknown one); `opened`: the text begins inside a thought."""

    def __init__(self, tools: str, reasoning: str, *, opened: bool) -> None:
        self.inside = opened
        self._text = ""
        self._may_begin = True
        thoughts = REASONING_FORMATS[reasoning]
        self._anywhere = thoughts is None or thoughts.anywhere
        if thoughts is not None:
            calls = TOOL_FORMATS[tools].markers if TOOL_FORMATS[tools].inside_thoughts else ()
            self._begin = re.compile(rf"\s*{re.escape(thoughts.begin)}")
            self._end = re.compile("|".join(map(re.escape, (thoughts.end, *calls))))
        else:
            self._begin, self._end = (_HARMONY_BEGIN if reasoning == HARMONY else re.compile("(?!)")), _HARMONY_END

    def feed(self, piece: str) -> None:
        """More text."""
        self._text += piece
        while (found := self._next_marker()) is not None:
            self._text = self._text[found.end() :]
            self.inside = not self.inside
            self._may_begin = self._anywhere
        if len(self._text) > _LONGEST:
            self._text = self._text[-_LONGEST:]
            self._may_begin = self._anywhere

    def close(self) -> None:
        """The thought was closed, whatever the text says."""
        self.inside, self._text, self._may_begin = False, "", self._anywhere

    def _next_marker(self) -> re.Match[str] | None:
        if self.inside:
            return self._end.search(self._text)
        if not self._may_begin:
            return None
        return (self._begin.search if self._anywhere else self._begin.match)(self._text)


def continued_formats(tools: str, reasoning: str, begun: str) -> tuple[str, str, bool]:
    """The formats that are left to the rest of an answer which begins with `begun`, and whether it goes on inside a
    thought. Behind the beginning of its content there are no thoughts or calls that would have to come first."""
    if HARMONY in (tools, reasoning):  # what was begun is a message to the user, in which another one may follow
        return tools, reasoning, False
    meter = ThoughtMeter(tools, reasoning, opened=False)
    meter.feed(begun)
    if meter.inside:
        return tools, reasoning, True
    thoughts = REASONING_FORMATS[reasoning]
    thinks_later = thoughts is not None and thoughts.anywhere
    return (NONE if TOOL_FORMATS[tools].leading else tools), (reasoning if thinks_later else NONE), False


def closing_text(reasoning: str, *, calling: bool = False) -> str:
    """The text with which a model ends its thought and begins its answer, or, if it is `calling`, a call. Empty for a
    format without thoughts."""
    if reasoning == HARMONY:
        what = f"commentary to={harmony.FUNCTIONS}" if calling else f"final{harmony.MESSAGE}"
        return f"{harmony.END}{harmony.START}assistant{harmony.CHANNEL}{what}"
    thoughts = REASONING_FORMATS[reasoning]
    return "" if thoughts is None else thoughts.end
