"""`octavo workers`: the live workers and what they are doing."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from octavo.cli.console import AsJson, RedisUrl, print_json
from octavo.service.console import err, out
from octavo.service.fleet import live_workers
from octavo.terms.workers import DIGEST_SHOWN


def workers(
    redis_url: RedisUrl = None,
    host: Annotated[str | None, typer.Option(help="Only workers on this host.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the workers with a live heartbeat. Exit code 1 if there is none, so that it serves as a health check."""
    found = [worker for worker in asyncio.run(live_workers(redis_url)) if host in (None, worker.host)]
    if as_json:
        print_json({"workers": found})
    elif found:
        table = Table("id", "model", "serves", "host", "pid", box=None, pad_edge=False)
        for worker in found:
            table.add_row(worker.id, worker.model, worker.digest[:DIGEST_SHOWN], worker.host, str(worker.pid))
        out.print(table, soft_wrap=False)
    else:
        err.print("no live worker; start one with: octavo worker --model demo")
    if not found:
        raise typer.Exit(1)
