"""The log of `octavo up`: its own events and its children's, in colours on a terminal, one form of JSON elsewhere."""

from __future__ import annotations

import json
import time

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from octavo.terms.logs import LogFormat, json_event, printable

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class ServiceLog:
    """Where a service says what happens."""

    def __init__(self, console: Console, name: str = "up") -> None:
        """`name` is what the service calls itself."""
        self._console = console
        self._name = name

    @property
    def format(self) -> LogFormat:
        """The format that children are to write."""
        return "text" if self._console.is_terminal else "json"

    def say(self, event: str) -> None:
        """An event of the service itself."""
        if self._console.is_terminal:
            self._console.print(escape(event))
        else:
            self._write(event, self._name)

    def child(self, name: str, line: str) -> None:
        """A line that a child wrote: an event in its form, or what an interpreter or a library said without asking."""
        if self._console.is_terminal:
            colour = _COLOURS[sum(name.encode()) % len(_COLOURS)]
            self._console.print(Text.assemble((f"{name:<9}", colour), printable(line)))
            return
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and "event" in event:
            self._console.out(json.dumps({**event, "process": name}), highlight=False)
        else:
            self._write(line, name)

    def _write(self, event: str, process: str) -> None:
        line = json_event(event, time.time(), "info", "octavo.cli", process=process)
        self._console.out(line, highlight=False)
