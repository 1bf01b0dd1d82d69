"""The text of a custom tool's call. The model writes it as the one argument of a function; readers get the text."""

from __future__ import annotations

import json
import re

from octavo.terms.tools import as_json, as_object

NAME = "input"
PARAMETERS = {"type": "object", "properties": {NAME: {"type": "string"}}, "required": [NAME]}
"""Schema of the function that stands for a custom tool."""

_HEAD = re.compile(rf'\s*\{{\s*"{NAME}"\s*:\s*"')
_PIECE = re.compile(r'[^"\\]+|\\(?:u[0-9a-fA-F]{4}|u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])|[^u])')
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def arguments_of(text: str) -> str:
    """Arguments of the call that has this text."""
    return as_json({NAME: text})


class TextArgument:
    """Takes the arguments apart as they come. Its text depends on their characters alone, not on how they were cut.
    Arguments of another form are the text themselves."""

    def __init__(self) -> None:
        self._held = ""
        self._in_text = self._is_over = False
        self._high = ""  # the first half of a surrogate pair

    def add(self, arguments: str) -> str:
        """More of the arguments; gives the text that they make certain."""
        self._held += arguments
        if self._is_over:
            return ""
        if not self._in_text and not self._begins():
            return ""
        return self._text()

    def end(self) -> str:
        """No more will come: the text that is left."""
        if self._in_text:
            return self._taken_high()
        value = (as_object(self._held) or {}).get(NAME)
        return value if isinstance(value, str) else self._held

    def _begins(self) -> bool:
        head = _HEAD.match(self._held)
        if head is not None:
            self._held = self._held[head.end() :]
            self._in_text = True
        return head is not None

    def _text(self) -> str:
        found: list[str] = []
        at = 0
        while (piece := _PIECE.match(self._held, at)) is not None:
            found.append(self._decoded(piece[0]))
            at = piece.end()
        if self._held[at : at + 1] == '"':
            self._is_over = True
            found.append(self._taken_high())
        self._held = self._held[at:]
        return "".join(found)

    def _decoded(self, piece: str) -> str:
        if len(piece) == 6 and piece.startswith("\\u"):
            unit = int(piece[2:], 16)
            if 0xDC00 <= unit < 0xE000 and self._high:
                high, self._high = self._high, ""
                return str(json.loads(f'"{high}{piece}"'))
            before = self._taken_high()
            if 0xD800 <= unit < 0xDC00:
                self._high = piece
                return before
            return before + ("\ufffd" if 0xDC00 <= unit < 0xE000 else chr(unit))
        before = self._taken_high()
        return before + (_SHORT.get(piece[1], piece[1]) if piece.startswith("\\") else piece)

    def _taken_high(self) -> str:
        """Half a pair stands for nothing."""
        high, self._high = self._high, ""
        return "\ufffd" if high else ""
