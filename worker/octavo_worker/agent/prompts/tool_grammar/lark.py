"""A grammar in llguidance's dialect of Lark, while it is written (its docs/syntax.md describes the dialect)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.dialects.grammar.keywords import without_annotations

_META = re.compile(r"[\\.+*?()|\[\]{}^$/]")
_GUIDANCE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as models learn to write it: a blank behind commas and colons, and no other."""

EMPTY = '""'
"""The expression for no text at all."""


class Lark:
    """Rules by name. `tokens` are the added tokens of the vocabulary by their spelling: where one is spelled in a
    literal, the token itself is meant, as ordinary text cannot stand for it."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        longest_first = sorted(map(re.escape, filter(None, tokens)), key=len, reverse=True)
        self._spelled = re.compile("(" + ("|".join(longest_first) or "(?!)") + ")")
        self._rules: list[str] = []
        self._names: dict[tuple[str, str], str] = {}

    def literal(self, text: str) -> str:
        """An expression for exactly this text. Empty for an empty one."""
        parts = [part for part in self._spelled.split(text) if part]
        return " ".join(f"<[{self._tokens[part]}]>" if part in self._tokens else _quoted(part) for part in parts)

    def rule(self, body: str) -> str:
        """The name of a rule; equal rules have one name."""
        return self._named("r", body)

    def terminal(self, body: str) -> str:
        """Likewise of a terminal: a regular expression, or several with `&` and `~`."""
        return self._named("T", body)

    def json(self, schema: Mapping[str, Any]) -> str:
        """The name of a rule for a JSON value that is valid by a schema."""
        text = json.dumps({"x-guidance": _GUIDANCE, **schema}, ensure_ascii=False)
        return self._named("r", f"%json {without_annotations(text)}")

    def text_without(self, *markers: str) -> str:
        """The name of a terminal for any text, none included, in which no marker is."""
        without = "".join(f" & ~/(?s:.*){escaped(marker)}(?s:.*)/" for marker in markers if marker)
        return self.terminal(f"/(?s:.*)/{without}")

    def text_until(self, marker: str) -> str:
        """An expression for any text up to the first place where the marker is, and the marker."""
        first = self._spelled.match(marker)
        if first is not None:
            return f"{self.text_without(first[0])} {self.literal(marker)}"
        return self._named("r", f"/(?s:.*){escaped(marker)}/", "[lazy]")

    def written(self, start: str) -> str:
        """The grammar whose texts are those of the expression `start`."""
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _named(self, prefix: str, body: str, attributes: str = "") -> str:
        key = (attributes, body)
        if key not in self._names:
            name = self._names[key] = f"{prefix}{len(self._names)}"
            self._rules.append(f"{name}{attributes}: {body}")
        return self._names[key]


def alternatives(expressions: list[str]) -> str:
    """One of these."""
    return expressions[0] if len(expressions) == 1 else f"({' | '.join(expressions)})"


def escaped(text: str) -> str:
    """A regular expression for a text."""
    return _META.sub(r"\\\g<0>", text).replace("\n", "\\n")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # which JSON leaves as it is, unlike Lark
