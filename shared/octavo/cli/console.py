"""How commands talk: results on stdout, everything else on stderr, and the options that several of them share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter
from rich.markup import escape

from octavo.queue.address import parse_address
from octavo.service.console import err
from octavo.terms.errors import OctavoError
from octavo.terms.logs import printable

_ANY: TypeAdapter[Any] = TypeAdapter(Any)
_JSON_CONTROLS = re.compile("[\x7f-\x9f]")  # those that JSON does not escape by itself


WRONG_USAGE = 2


def value_of(check: Callable[[str], object]) -> Callable[[str | None], str | None]:
    """A callback that tries the value of an option, if one is given: an error of this package is wrong usage then."""

    def tried(value: str | None) -> str | None:
        try:
            if value is not None:
                check(value)
        except OctavoError as error:
            raise typer.BadParameter(printable(error.message)) from None
        return value

    return tried


RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        envvar="REDIS_URL",
        show_default=False,
        callback=value_of(parse_address),
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
    """Prints a model's text on stdout: to the letter, but on a terminal nothing that it would obey."""
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
