"""Arguments as tags, a key and a value each, of which JSON is made: Qwen 3 Coder's and GLM's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.dialects.parsing.answer import Answer
from octavo.dialects.parsing.json_text import escaped, quoted
from octavo.dialects.parsing.source import Emit, Reading, Source
from octavo.dialects.parsing.typed import parameter, value_of

_KEY = re.compile(r"[^<>\n]*")


@dataclass(frozen=True)
class Tags:
    """`before_key` KEY `after_key` VALUE `after_value`, any number of them, and what may end the call, in order.

    `on_lines`: a value stands on lines of its own, whose breaks are not part of it.
    """

    before_key: str
    after_key: tuple[str, ...]
    after_value: str
    ends: tuple[str, ...]
    on_lines: bool

    @property
    def value_ends(self) -> tuple[str, ...]:
        return (f"\n{self.after_value}", self.after_value) if self.on_lines else (self.after_value,)

    @property
    def follows(self) -> tuple[str, ...]:
        """Texts that may stand behind a value. Anything else means that its end was only mentioned."""
        return (self.before_key, *self.ends)


def pass_arguments(source: Source, answer: Answer, tags: Tags, schema: Mapping[str, Any] | None) -> Reading[None]:
    """Give out the arguments of the call that was begun, as one JSON object, string values as they come."""
    answer.arguments("{")
    separator = ""
    while (yield from source.ahead((tags.before_key,), spaced=True)):
        source.mark()
        key = yield from _read_key(source, tags)
        if key is None:
            source.back()
            return
        source.commit()
        answer.arguments(f"{separator}{quoted(key)}: ")
        yield from _pass_value(source, answer, tags, parameter(schema, key))
        separator = ", "
    ended = False
    for end in tags.ends:
        ended = (yield from source.take(end, spaced=True)) or ended
    if ended:
        answer.arguments("}")


def _read_key(source: Source, tags: Tags) -> Reading[str | None]:
    yield from source.take(tags.before_key, spaced=True)
    key = yield from source.word(_KEY)
    for literal in tags.after_key:
        if not (yield from source.take(literal, spaced=True)):
            return None
    if tags.on_lines:
        yield from source.take("\n")
    return key.strip() or None


def _pass_value(source: Source, answer: Answer, tags: Tags, types: frozenset[str]) -> Reading[None]:
    if types == {"string"}:
        answer.arguments('"')
        if (yield from _pass_text(source, tags, lambda text: answer.arguments(escaped(text)))):
            answer.arguments('"')
        return
    pieces: list[str] = []
    whole = yield from _pass_text(source, tags, pieces.append)
    text = "".join(pieces)
    answer.arguments(value_of(text, types) if whole else text)


def _pass_text(source: Source, tags: Tags, emit: Emit) -> Reading[bool]:
    """The text of a value; whether it ended."""
    while end := (yield from source.pass_until(tags.value_ends, emit)):
        closes = yield from source.closes(end, tags.follows)
        mentioned = source.skip(len(end))
        if closes:
            return True
        emit(mentioned)
    return False
