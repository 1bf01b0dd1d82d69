"""`octavo usage`: what tenants have used."""

from __future__ import annotations

import asyncio
import csv
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from octavo.cli.console import AsJson, RedisUrl, print_json, value_of
from octavo.client.asynchronous import AsyncClient
from octavo.client.requests import checked_tenant
from octavo.queue.tenants.usage import DAY_S, HOUR_S, Row, Sums, grouped
from octavo.service.console import out

_UNITS = {"h": HOUR_S, "d": DAY_S}
_COLUMNS: dict[str, Callable[[Row], Any]] = {
    "tenant": lambda row: row.tenant,
    "key": lambda row: row.api_key,
    "model": lambda row: row.model,
    "batch": lambda row: row.of_batches,
    "day": lambda row: f"{datetime.fromtimestamp(row.start, UTC):%Y-%m-%d}",
}


def usage(
    by: Annotated[str, typer.Option(help=f"Columns, with commas between: {', '.join(_COLUMNS)}.")] = "tenant",
    since: Annotated[str, typer.Option(help="From so long ago on: 12h, 7d.")] = "7d",
    tenant: Annotated[
        str | None, typer.Option(help="Only this tenant's.", callback=value_of(checked_tenant), show_default=False)
    ] = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
) -> None:
    """Tokens, requests and seconds of jobs that ended, from whole hours (for the last eight days) and days (UTC)."""
    names = [name.strip() for name in by.split(",")]
    if unknown := [name for name in names if name not in _COLUMNS]:
        raise typer.BadParameter(f"{unknown[0]!r} is no column: {', '.join(_COLUMNS)}")
    start = _start(since)

    async def read() -> list[Row]:
        async with AsyncClient(redis_url) as client:
            return await client.tenants.usage(start, time.time() + 1, None if tenant is None else [tenant])

    sums = grouped(asyncio.run(read()), lambda row: tuple(_COLUMNS[name](row) for name in names))
    lines = [
        {**dict(zip(names, values, strict=True)), **_numbers(sums[values])} for values in sorted(sums, key=_in_order)
    ]
    if as_json:
        print_json({"since": datetime.fromtimestamp(start, UTC).isoformat(), "usage": lines})
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, [*names, *_numbers(Sums())], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    else:
        _show(names, lines)


def _in_order(values: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(map(str, values))


def _start(since: str) -> int:
    """The beginning of an hour, or of a day where hours are not kept any more. Raises BadParameter."""
    found = re.fullmatch(r"(\d{1,4})([hd])", since)
    if found is None:
        raise typer.BadParameter("--since is given as 12h or 7d")
    seconds = int(found[1]) * _UNITS[found[2]]
    start = int(time.time()) - seconds
    return start - start % (HOUR_S if seconds <= 8 * DAY_S else DAY_S)


def _numbers(sums: Sums) -> dict[str, Any]:
    numbers = asdict(sums)
    for name in ("waited", "computed"):
        numbers[f"{name}_s"] = numbers.pop(f"{name}_ms") / 1000
    return numbers


def _show(names: list[str], lines: list[dict[str, Any]]) -> None:
    shown = ("requests", "failures", "input_tokens", "output_tokens", "computed_s")
    table = Table(*names, *(name.replace("_", " ") for name in shown), box=None, pad_edge=False)
    for line in lines:
        table.add_row(*(str(line[name]) for name in names), *(f"{line[name]:,}" for name in shown))
    out.print(table if lines else "nothing was used", soft_wrap=False)
