"""Requests that programs of others sent, shortened and without private data: `tests/gateway/recorded/programs`."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import httpx
from front import Sent

FOLDER = Path(__file__).parents[1] / "gateway" / "recorded" / "programs"
MOST_OF_A_TEXT = 24
_HEADERS = ("accept", "anthropic-beta", "anthropic-version", "content-type", "openai-beta", "user-agent")
_ID = re.compile(r"\b(call|toolu|msg|fc|fco|rs|resp)_(g00_)?[0-9A-Za-z-]{16,}")
_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TEXTS = ("text", "description", "content", "instructions", "system", "title", "user_id", "output", "thinking")
_PRIVATE = ("client_metadata", "metadata")


@dataclass(frozen=True)
class Recorded:
    """`ignored` are the fields that the gateway says it took for hints."""

    path: str
    headers: dict[str, str]
    body: Any
    ignored: list[str]

    @classmethod
    def of(cls, sent: Sent) -> Self:
        headers = {name: value for name, value in sorted(sent.headers.items()) if name in _HEADERS}
        return cls(sent.path, headers, _Shortener().value(sent.body), ignored_by(sent.answer))

    @classmethod
    def load(cls, name: str) -> Self:
        return cls(**json.loads((FOLDER / f"{name}.json").read_text()))

    def save(self, name: str) -> None:
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(f"{text}\n")

    @property
    def route(self) -> str:
        """The last word of its path."""
        return self.path.partition("?")[0].rpartition("/")[2]

    @property
    def fields(self) -> set[str]:
        """Names of all fields, but for those of schemas: dotted, a list's elements as one."""
        return set(_fields(self.body))


def check(name: str, sent: Sent) -> None:
    """Raises AssertionError where a program sends other fields than are recorded. With RECORD=1 it records them."""
    found = Recorded.of(sent)
    if os.environ.get("RECORD") == "1":
        found.save(name)
    known = Recorded.load(name)
    assert (found.path, found.fields, set(found.ignored)) == (known.path, known.fields, set(known.ignored))


def ignored_by(answer: httpx.Response) -> list[str]:
    """Fields that the gateway says it took for hints."""
    return [name.strip() for name in answer.headers.get("octavo-ignored", "").split(",") if name]


class _Shortener:
    """Texts are cut, ids are counted: the same one is the same afterwards."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def value(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            if name in _PRIVATE:
                return dict.fromkeys(sorted(value), "...")
            return {key: self.value(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [self.value(each, name) for each in value]
        return self._text(value, name) if isinstance(value, str) else value

    def _text(self, text: str, name: str) -> str:
        if name in _TEXTS and len(text) > MOST_OF_A_TEXT:
            return text[:MOST_OF_A_TEXT].rstrip() + "..."
        text = _ID.sub(lambda found: f"{found[1]}_{self._count(found[0])}", text)
        return _UUID.sub(lambda found: f"00000000-0000-0000-0000-{self._count(found[0]):0>12}", text)

    def _count(self, known: str) -> str:
        return self._ids.setdefault(known, str(len(self._ids) + 1))


def _fields(value: Any, place: str = "") -> Any:
    if isinstance(value, list):
        for each in value:
            yield from _fields(each, place)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield f"{place}{name}"
            if name not in ("parameters", "input_schema", "schema"):
                yield from _fields(each, f"{place}{name}.")
