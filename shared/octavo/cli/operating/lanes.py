"""`octavo lanes ls`, `pause` and `resume`: lanes of models and classes."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from octavo.cli.console import AsJson, RedisUrl, print_json, when
from octavo.client.asynchronous import AsyncClient
from octavo.service.console import out
from octavo.terms.fields import Priority
from octavo.terms.fleet import PausedLane
from octavo.terms.logs import printable

app = typer.Typer(help="Pause lanes of models and let them go on.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(help="Name of the model.", show_default=False)]
OneClass = Annotated[Priority | None, typer.Option("--class", help="That of one class; without it all of the model.")]


@app.command("ls")
def ls(redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """List the lanes that are paused."""

    async def paused() -> list[PausedLane]:
        async with AsyncClient(redis_url) as client:
            return await client.paused_lanes()

    found = asyncio.run(paused())
    if as_json:
        print_json({"paused": found})
        return
    table = Table("model", "class", "since", box=None, pad_edge=False)
    for lane in found:
        table.add_row(Text(printable(lane.model)), lane.priority, when(lane.since))
    out.print(table if found else "no lane is paused", soft_wrap=False)


@app.command("pause")
def pause(model: Model, priority: OneClass = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Pause lanes: jobs wait, and no worker claims them. Those that run go on, also at another worker."""

    async def ask() -> int:
        async with AsyncClient(redis_url) as client:
            return await client.pause(model, priority)

    _tell(model, "paused", asyncio.run(ask()), as_json)


@app.command("resume")
def resume(model: Model, priority: OneClass = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Let paused lanes go on. The time that a job may wait for its start does not run meanwhile."""

    async def ask() -> int:
        async with AsyncClient(redis_url) as client:
            return await client.resume(model, priority)

    _tell(model, "resumed", asyncio.run(ask()), as_json)


def _tell(model: str, what: str, changed: int, as_json: bool) -> None:
    if as_json:
        print_json({"model": model, what: changed})
    else:
        lanes = "1 lane" if changed == 1 else f"{changed} lanes"
        out.print(f"{lanes} of {printable(model)} {what}")
