"""A benchmark's figures as a table for people."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from octavo_worker.bench.report import encode, write

NO_COLUMNS = ("seconds", "cpu_ms_per_1000_tokens")
MOST_COLUMNS = 14

_PIPE_WIDTH = 1000  # a pipe has no width of its own: nothing is cut off there


def show(document: dict[str, Any], as_json: bool, out: Path | None) -> None:
    """On standard output as a table or as JSON, and in the file `out`."""
    if out is not None:
        write(document, out)
    if as_json:
        typer.echo(encode(document))
        return
    names = list(dict.fromkeys(key for row in document["rows"] for key in row))
    columns = [name for name in names if name not in NO_COLUMNS]
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(_across(document, columns) if len(columns) <= MOST_COLUMNS else _down(document, names))


def _across(document: dict[str, Any], names: list[str]) -> Table:
    table = Table(title=document["benchmark"])
    for name in names:
        is_name = name == "workload"
        table.add_column(name.replace("_", " "), justify="left" if is_name else "right", no_wrap=is_name)
    for row in document["rows"]:
        table.add_row(*(_cell(row.get(name)) for name in names))
    return table


def _down(document: dict[str, Any], names: list[str]) -> Table:
    """A column a row, for rows of many figures."""
    rows = document["rows"]
    table = Table("", *([""] * len(rows)), title=document["benchmark"], show_header=False)
    for name in names:
        values = [row.get(name) for row in rows]
        parts = dict.fromkeys(part for value in values if isinstance(value, dict) for part in value)
        for part in parts or [""]:
            shown = [value.get(part) if isinstance(value, dict) else value for value in values]
            label = f"{name} {part}".strip().replace("_", " ")
            table.add_row(label, *map(_cell, shown))
    return table


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)
