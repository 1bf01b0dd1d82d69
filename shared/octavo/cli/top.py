"""`octavo top`: lanes, jobs and workers, live."""

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
from octavo.cli.keyboard import pressed_keys
from octavo.cli.memory_view import memory_panel
from octavo.client.asynchronous import AsyncClient
from octavo.queue.fleet import describe_mix, mixed_models
from octavo.service.console import out
from octavo.service.fleet import Reader, Snapshot
from octavo.terms.fleet import FleetStats
from octavo.terms.logs import printable

_WIDE, _WIDEST = 150, 132
_JOBS, _BATCHES, _ENDPOINTS = 15, 5, 5


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
    """Show lanes, jobs, workers, KV cache and latencies until Ctrl-C. --json prints a line for each reading.

    Keys: q quits, j shows jobs or hides them, m the workers' memory."""
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
                    stats = snapshot.stats.model_dump(mode="json")
                    print_json({**asdict(snapshot), "tokens_per_s": snapshot.tokens_per_s, "stats": stats})
                else:
                    out.print(_screen(snapshot), soft_wrap=False)
                if once:
                    return
        await _draw(reader, interval)


async def _draw(reader: Reader, interval: float) -> None:
    """Until `q` is pressed."""
    jobs = True
    with (
        pressed_keys() as keys,
        Live(Text("reading ..."), console=out, screen=out.is_terminal, auto_refresh=False) as live,
    ):
        while True:
            live.update(_screen(await reader.read(), jobs=jobs), refresh=True)
            match await keys.wait(interval):
                case "q":
                    return
                case "j":
                    jobs = not jobs
                case "m":
                    reader.memory = not reader.memory


def _screen(snapshot: Snapshot, *, jobs: bool = True) -> RenderableType:
    stats = snapshot.stats
    mixed = [Text(describe_mix(*mix), style="yellow") for mix in mixed_models(snapshot.workers).items()]
    counts = f"{stats.running} running, {stats.queued} queued, {stats.dead} dead"
    rate = f"{snapshot.tokens_per_s:.0f} tokens/s"
    total = Text(f"{counted(len(snapshot.workers), 'worker')}, {rate}, {counts}", style="bold")
    maps = [memory_panel(memory, min(out.width, _WIDEST)) for memory in snapshot.memory]
    workers = _worker_table(snapshot, out.width >= _WIDE)
    batches: list[RenderableType] = [Text(), _batch_table(stats)] if stats.batches else []
    listed: list[RenderableType] = [Text(), _job_table(snapshot)] if jobs and stats.running + stats.queued else []
    failing: list[RenderableType] = [Text(), _webhook_table(stats)] if stats.webhooks else []
    return Group(total, Text(), _lane_table(stats), Text(), workers, *mixed, *maps, *batches, *failing, *listed)


def _lane_table(stats: FleetStats) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("class", no_wrap=True)
    for name in ("queued", "running", "backlog", "oldest"):
        table.add_column(name, justify="right", no_wrap=True)
    for lane in stats.lanes:
        oldest = "" if lane.waiting_since is None else _span(stats.at - lane.waiting_since)
        if lane.waiting or lane.running or lane.priority == "normal":  # every model has a line
            backlog = f"{lane.backlog_tokens} tok" if lane.waiting else ""
            table.add_row(lane.model, lane.priority, str(lane.waiting), str(lane.running), backlog, oldest)
    return table


def _batch_table(stats: FleetStats) -> Table:
    table = Table("batch", "state", "done", "failed", "of", "ends in", box=None, pad_edge=False)
    for batch in stats.batches[:_BATCHES]:
        left = "" if batch.predicted_end is None else _span(batch.predicted_end - stats.at)
        table.add_row(batch.id[-12:], batch.status, *map(str, (batch.completed, batch.failed, batch.total)), left)
    return table


def _webhook_table(stats: FleetStats) -> Table:
    table = Table("webhooks that fail", "tenant", "failed", "waiting", "last answer", box=None, pad_edge=False)
    for one in stats.webhooks[:_ENDPOINTS]:
        name, counts = Text(printable(one.name)), (str(one.failed), str(one.waiting))
        table.add_row(name, one.tenant, *counts, Text(printable(one.last_answer or "")))
    return table


def _job_table(snapshot: Snapshot) -> Table:
    """The first of them, with the last letters of their ids, which differ."""
    table = Table(box=None, pad_edge=False)
    for name in ("job", "tenant", "state"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=16)
    for name in ("tokens", "age", "attempts"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("worker", no_wrap=True, overflow="ellipsis", max_width=20)
    jobs = snapshot.jobs()
    for job in jobs[:_JOBS]:
        age = _span(snapshot.stats.at - job.created_at)
        counts = (str(job.tokens), age, str(job.attempts))
        table.add_row(job.id[-12:], job.tenant, job.status, *counts, job.worker or "")
    if (left := snapshot.stats.running + snapshot.stats.queued - min(len(jobs), _JOBS)) > 0:
        table.add_row(f"and {left} more")
    return table


def _span(seconds: float) -> str:
    """A time for people: 0.4s, 59s, 12m, 3h, 2d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 else f"{max(0.0, seconds):.1f}s"


def _worker_table(snapshot: Snapshot, is_wide: bool) -> Table:
    """A narrow terminal gets what changes."""
    figures = {worker.id: worker for worker in snapshot.stats.workers}
    table = Table(box=None, pad_edge=False)
    table.add_column("worker", overflow="fold")
    table.add_column("model", overflow="fold")
    for name in ("run", "wait", "KV", "tokens/s", "first"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("step", "cached", "", "type", "preempted", "by swap", "drafts") if is_wide else ():
        table.add_column(name, no_wrap=True)
    for load in snapshot.workers:
        counts = (str(load.running), str(load.waiting), f"{load.kv_used:.0%}", f"{load.tokens_per_s:.0f}")
        now = figures.get(load.id)
        first = "" if now is None or now.first_token_s is None else _span(now.first_token_s)
        row: list[RenderableType] = [load.id, load.model, *counts, first]
        if is_wide:
            bar = ProgressBar(total=1.0, completed=load.kv_used, width=12)
            swapped = load.preemption_reasons["swapped_out"]
            right = f"{load.accepted_tokens / load.drafted_tokens:.0%} right" if load.drafted_tokens else ""
            row += ["" if now is None else f"{now.step_ms:.0f}ms", f"{load.kv_cached:.0%}"]
            row += [bar, load.kv_dtype, str(load.preemptions), str(swapped), right]
        table.add_row(*row)
    return table
