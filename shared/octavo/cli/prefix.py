"""`octavo prefix`: system prompts and other beginnings that workers keep in their KV memory."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from octavo.cli.console import AsJson, RedisUrl, print_json
from octavo.client.asynchronous import DEFAULT_TENANT, AsyncClient
from octavo.service.console import err, out
from octavo.terms.logs import printable
from octavo.terms.workers import PinnedPrefix

app = typer.Typer(help="Keep named prefixes in the KV memory of workers.", no_args_is_help=True)

_POLL_S = 0.2
Name = Annotated[str, typer.Argument(help="Name of the prefix.", show_default=False)]
Model = Annotated[str, typer.Option("--model", "-m", help="Name of the model.")]
OfTenant = Annotated[str, typer.Option("--tenant", help="The tenant whose jobs find it; others never do.")]


@app.command("pin")
def pin(
    name: Name,
    text: Annotated[
        str | None, typer.Argument(help="The system message; `-` reads it from standard input.", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the text from a file.", exists=True, dir_okay=False)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The text is how prompts begin, not a system message.")] = False,
    tokens: Annotated[str | None, typer.Option(help="How prompts begin, as token ids: 1,2,3.")] = None,
    model: Model = "demo",
    tenant: OfTenant = DEFAULT_TENANT,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for what workers make of it.")] = 15.0,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Keep a system message in the KV memory of every worker of a model, also of those that start later.

    It takes the place of what had the name before. Exit code 1 if a worker refused it or did not answer in time.
    """
    prefix = _prefix(text, file, tokens, raw=raw)
    found = asyncio.run(_pin(redis_url, name, model, tenant, prefix, wait))
    if as_json:
        print_json(found)
    else:
        _show([found])
        if not found.workers:
            err.print("no live worker of this model: those that start later pin it")
    if not all(outcome is not None and outcome.state == "pinned" for outcome in found.workers.values()):
        raise typer.Exit(1)


@app.command("ls")
def ls(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only this model's.")] = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """List pinned prefixes and what each worker makes of them."""

    async def listed() -> list[PinnedPrefix]:
        async with AsyncClient(redis_url) as client:
            return await client.pins(model)

    found = asyncio.run(listed())
    if as_json:
        print_json({"prefixes": found})
    elif found:
        _show(found)
    else:
        out.print("no prefix is pinned")


@app.command("drop")
def drop(name: Name, model: Model = "demo", tenant: OfTenant = DEFAULT_TENANT, redis_url: RedisUrl = None) -> None:
    """Leave a pinned prefix to the cache again. Exit code 1 if there was none of that name."""

    async def ask() -> bool:
        async with AsyncClient(redis_url) as client:
            return await client.unpin_prefix(name, model=model, tenant=tenant)

    if not asyncio.run(ask()):
        err.print(escape(f"no prefix {name} of {tenant} is pinned for {model}: octavo prefix ls"))
        raise typer.Exit(1)
    out.print(f"{name}: left to the cache")


def _prefix(text: str | None, file: Path | None, tokens: str | None, *, raw: bool) -> dict[str, Any]:
    """The one that was given, as the client takes it."""
    if sum(given is not None for given in (text, file, tokens)) != 1:
        raise typer.BadParameter("give exactly one of TEXT, --file and --tokens")
    if tokens is not None:
        try:
            return {"prompt": [int(token) for token in tokens.split(",")]}
        except ValueError:
            raise typer.BadParameter("token ids are numbers with commas between: 1,2,3") from None
    said = file.read_text(encoding="utf-8") if file is not None else sys.stdin.read() if text == "-" else text
    return {"prompt" if raw else "system": said}


async def _pin(
    redis_url: str | None, name: str, model: str, tenant: str, prefix: dict[str, Any], wait: float
) -> PinnedPrefix:
    async with AsyncClient(redis_url) as client:
        asked = await client.pin_prefix(name, model=model, tenant=tenant, **prefix)
        deadline = time.monotonic() + wait
        while True:
            found = next((pinned for pinned in await client.pins(model) if pinned.pin.key == asked.key), None)
            if found is None:
                return PinnedPrefix(pin=asked, workers={})  # it was dropped meanwhile
            if found.is_settled or time.monotonic() > deadline:
                return found
            await asyncio.sleep(_POLL_S)


def _show(prefixes: list[PinnedPrefix]) -> None:
    table = Table("name", "model", "tenant", "worker", "state", "tokens", box=None, pad_edge=False)
    reasons = []
    for prefix in prefixes:
        pin = prefix.pin
        for worker, outcome in (prefix.workers or {"": None}).items():
            state = outcome.state if outcome is not None else "no answer yet" if worker else "no worker"
            tokens = str(outcome.tokens) if outcome is not None else ""
            table.add_row(pin.name, pin.model, pin.tenant, worker, state, tokens)
            if outcome is not None and outcome.message:
                reasons.append(f"{pin.name}: {outcome.message}")
    out.print(table, soft_wrap=False)
    for reason in dict.fromkeys(reasons):
        out.print(Text(printable(reason)), soft_wrap=not out.is_terminal)
