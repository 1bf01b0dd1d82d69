"""`octavo top`: the queue and the workers, live."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from octavo.cli.console import AsJson, RedisUrl, counted, print_json
from octavo.cli.memory_view import memory_panel
from octavo.client.asynchronous import AsyncClient
from octavo.queue.fleet import describe_mix, mixed_models
from octavo.service.console import out
from octavo.service.fleet import Reader, Snapshot, WorkerLoad

_WIDE, _WIDEST = 110, 132


def top(
    redis_url: RedisUrl = None,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between readings.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One reading, then exit.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", "-M", help="Show each worker's KV blocks, and why sequences gave up memory.")
    ] = False,
    worker: Annotated[str | None, typer.Option(help="Only workers with ids that begin so.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show queue depth, workers, KV cache and tokens a second until Ctrl-C. --json prints a line for each reading."""
    asyncio.run(_top(redis_url, interval, worker or "", once=once, memory=memory, as_json=as_json))


async def _top(redis_url: str | None, interval: float, prefix: str, *, once: bool, memory: bool, as_json: bool) -> None:
    async with AsyncClient(redis_url) as client:
        reader = Reader(client, prefix, memory=memory)
        await reader.read()
        if as_json or once:
            while True:
                await asyncio.sleep(interval)
                snapshot = await reader.read()
                if as_json:
                    print_json({**asdict(snapshot), "tokens_per_s": snapshot.tokens_per_s})
                else:
                    out.print(_screen(snapshot), soft_wrap=False)
                if once:
                    return
        with Live(Text("reading ..."), console=out, screen=out.is_terminal, auto_refresh=False) as live:
            while True:
                snapshot = await reader.read()
                live.update(_screen(snapshot), refresh=True)
                await asyncio.sleep(interval)


def _screen(snapshot: Snapshot) -> RenderableType:
    queue = Table("model", "queued", box=None, pad_edge=False)
    for model, waiting in sorted(snapshot.queued.items()):
        queue.add_row(model, str(waiting))
    mixed = [Text(describe_mix(*mix), style="yellow") for mix in mixed_models(snapshot.workers).items()]
    total = Text(f"{counted(len(snapshot.workers), 'worker')}, {snapshot.tokens_per_s:.0f} tokens/s", style="bold")
    maps = [memory_panel(memory, min(out.width, _WIDEST)) for memory in snapshot.memory]
    return Group(total, Text(), queue, Text(), _worker_table(snapshot.workers, out.width >= _WIDE), *mixed, *maps)


def _worker_table(workers: list[WorkerLoad], is_wide: bool) -> Table:
    """A narrow terminal gets what changes."""
    table = Table(box=None, pad_edge=False)
    table.add_column("worker", overflow="fold")
    table.add_column("model", overflow="fold")
    for name in ("run", "wait", "KV", "cached", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("", "type", "preempted", "by swap", "drafts") if is_wide else ():
        table.add_column(name, no_wrap=True)
    for load in workers:
        counts = (str(load.running), str(load.waiting), f"{load.kv_used:.0%}", f"{load.kv_cached:.0%}")
        row: list[RenderableType] = [load.id, load.model, *counts, f"{load.tokens_per_s:.0f}"]
        if is_wide:
            bar = ProgressBar(total=1.0, completed=load.kv_used, width=12)
            swapped = load.preemption_reasons["swapped_out"]
            right = f"{load.accepted_tokens / load.drafted_tokens:.0%} right" if load.drafted_tokens else ""
            row += [bar, load.kv_dtype, str(load.preemptions), str(swapped), right]
        table.add_row(*row)
    return table
