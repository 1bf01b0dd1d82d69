"""How commands talk: results on stdout, everything else on stderr, and the options that several of them share."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from octavo.logs import printable

_ANY: TypeAdapter[Any] = TypeAdapter(Any)
_PIPE_WIDTH = 200  # a pipe has no width of its own: nothing is cut off there
_JSON_CONTROLS = re.compile("[\x7f-\x9f]")  # those that JSON does not escape by itself


class QuotingConsole(Console):
    """On a terminal, a text cannot do what the terminal would obey: names, prompts and errors come from elsewhere."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if self.is_terminal and not segment.control:
                yield Segment(printable(segment.text), segment.style)
            else:
                yield segment


out = QuotingConsole(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
err = QuotingConsole(stderr=True, highlight=False, soft_wrap=True)

RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        envvar="REDIS_URL",
        show_default=False,
        help=r"Address of the Redis server. \[default: the server of `octavo up`, redis://localhost:6379]",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def print_json(value: Any) -> None:
    """One line of JSON on stdout; models as their fields. A number that is none is null: JSON has no NaN."""
    line = _ANY.dump_json(value).decode()
    if sys.stdout.isatty():
        line = _JSON_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", line)
    print(line, flush=True)


def print_text(text: str, end: str = "\n") -> None:
    """What a model wrote, on stdout: to the letter, but on a terminal nothing that it would obey."""
    print(printable(text) if sys.stdout.isatty() else text, end=end, flush=True)


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def when(at: float) -> str:
    """A moment on this host's clock: today's has no date."""
    moment = datetime.fromtimestamp(at)
    return moment.strftime("%H:%M:%S" if moment.date() == datetime.now().date() else "%Y-%m-%d %H:%M")


def fail(message: str, code: int = 1) -> typer.Exit:
    """Say what is wrong and what to do next; `raise` what comes back."""
    err.print(f"[bold red]error:[/] {escape(printable(message))}")
    return typer.Exit(code)
