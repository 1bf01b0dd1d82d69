"""The arguments of a call as Messages tell them: always a JSON object, also where a model wrote none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import isfinite

INVALID = "INVALID_JSON"
"""The member with the text of arguments that are no JSON, called as in Anthropic's documentation."""

_SPACE = re.compile(r"[ \t\r\n]*")
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_IN_STRING = re.compile(rf'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|{_HIGH}{_LOW})*')
_BEGUN_ESCAPE = re.compile(rf"(?:\\(?:u[0-9a-fA-F]{{0,3}})?|{_HIGH}(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?)\Z")
_BARE = re.compile(r'[^\s,:\[\]{}"]*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CLOSING = {"{": "}", "[": "]"}
_DEEPEST = 64


class _Broken(Exception):
    """No JSON object, or none that every reader takes: a number beyond all floats, half a surrogate pair, too deep."""


class ArgumentPieces:
    """Passes the text of a call's arguments on, in pieces that are JSON together.

    What is out can be completed at any time: by the brackets that are open, behind a member `INVALID_JSON` that has all
    of a text which turned out to be no JSON. So keys, numbers and words are held back until they are whole, and the
    last bracket is until the end.
    """

    def __init__(self) -> None:
        self._text = ""
        self._position = 0  # up to here it was read
        self._certain = self._told = 0
        self._open: list[str] = []  # brackets
        self._in_string = False
        self._is_broken = False
        self._next: Callable[[], bool] = self._opening

    def add(self, text: str) -> str:
        """Arguments that more text makes certain."""
        self._text += text
        try:
            while not self._is_broken and self._next():
                pass
        except _Broken:
            self._is_broken = True
        told, self._told = self._told, self._certain
        return self._text[told : self._told]

    def end(self, *, cut: bool) -> str:
        """The rest that completes it: nothing for a call without arguments, unless the answer was `cut`."""
        if self._next == self._nothing and not self._is_broken:
            return self._text[self._told :].rstrip()
        if not (self._text.strip() or cut):
            return ""
        string = '"' if self._in_string else ""
        closing = "".join(_CLOSING[bracket] for bracket in reversed(self._open[1:]))
        beginning = {"": "{", "{": ""}.get(self._text[: self._certain].strip(), ", ")
        return f"{string}{closing}{beginning}{json.dumps(INVALID)}: {json.dumps(self._text, ensure_ascii=False)}}}"

    # Each of these reads one part, and says whether the next can be read now.

    def _char(self) -> str:
        self._position = _end(_SPACE, self._text, self._position)
        return self._text[self._position : self._position + 1]

    def _opening(self) -> bool:
        return bool(char := self._char()) and self._begin("{" if char == "{" else "")

    def _begin(self, bracket: str) -> bool:
        if not bracket or len(self._open) == _DEEPEST:
            raise _Broken
        self._open.append(bracket)
        self._pass(1)
        self._next = self._first_key if bracket == "{" else self._first_item
        return True

    def _first_key(self) -> bool:
        return self._close() if self._char() == "}" else self._key()

    def _first_item(self) -> bool:
        return self._close() if self._char() == "]" else self._value()

    def _key(self) -> bool:
        if (char := self._char()) != '"':
            return self._refuse(char)
        end = _end(_IN_STRING, self._text, self._position + 1)
        if self._text[end : end + 1] != '"':
            return self._wait_in_string(end)
        colon = _end(_SPACE, self._text, end + 1)
        if self._text[colon : colon + 1] != ":":
            return self._refuse(self._text[colon : colon + 1])
        self._position = colon + 1
        self._next = self._value
        return True

    def _value(self) -> bool:
        char = self._char()
        if char == '"':
            self._in_string = True
            self._pass(1)
            self._next = self._string
            return True
        if char in _CLOSING:
            return self._begin(char)
        end = _end(_BARE, self._text, self._position)
        if end == len(self._text):
            return False
        self._check_bare(self._text[self._position : end])
        self._pass(end - self._position)
        self._next = self._comma
        return True

    def _check_bare(self, word: str) -> None:
        is_number = _NUMBER.fullmatch(word) is not None and isfinite(float(word))
        if not is_number and word not in ("true", "false", "null"):
            raise _Broken

    def _string(self) -> bool:
        self._pass(_end(_IN_STRING, self._text, self._position) - self._position)
        if self._text[self._position : self._position + 1] != '"':
            return self._wait_in_string(self._position)
        self._in_string = False
        self._pass(1)
        self._next = self._comma
        return True

    def _comma(self) -> bool:
        char = self._char()
        if char == _CLOSING[self._open[-1]]:
            return self._close()
        if char != ",":
            return self._refuse(char)
        self._position += 1
        self._next = self._key if self._open[-1] == "{" else self._value
        return True

    def _close(self) -> bool:
        if len(self._open) == 1:
            self._position += 1
            self._next = self._nothing
            return True
        self._open.pop()
        self._pass(1)
        self._next = self._comma
        return True

    def _nothing(self) -> bool:
        return self._refuse(self._char())

    def _pass(self, count: int) -> None:
        """Read on: all up to there is certain."""
        self._position += count
        self._certain = self._position

    def _refuse(self, found: str) -> bool:
        if found:
            raise _Broken
        return False

    def _wait_in_string(self, end: int) -> bool:
        if end < len(self._text) and _BEGUN_ESCAPE.match(self._text, end) is None:
            raise _Broken
        return False


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Where the longest part that begins at `start` ends; the patterns match the empty string, too."""
    found = pattern.match(text, start)
    return found.end() if found is not None else start
