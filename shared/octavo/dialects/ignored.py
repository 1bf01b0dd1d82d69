"""The fields of a request that were taken and change nothing, as a header and the log name them."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_NAMES = 16
_SHOWN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Ignored:
    """Names of fields, each once, in the order of the request."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._shown: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def add(self, name: str) -> None:
        if name not in self._names:
            self._names[name] = None
            if len(self._shown) < MOST_NAMES and _SHOWN.fullmatch(name):
                self._shown.append(name)

    def header(self) -> str:
        """The first names with commas between them, and `+N` for others. A name that is long or has other characters
        than names have is counted only: it is a client's text, and goes into headers and logs."""
        others = len(self._names) - len(self._shown)
        return ", ".join([*self._shown, *([f"+{others}"] if others else [])])
