"""`octavo top`: the queue and the workers, live."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from octavo.cli.console import AsJson, RedisUrl, counted, out, print_json
from octavo.cli.memory_view import memory_panel
from octavo.client import AsyncClient
from octavo.errors import WorkerNotFound
from octavo.fleet import describe_mix, mixed_models
from octavo.models import WorkerInfo, WorkerMemory

_WIDE, _WIDEST = 110, 132


@dataclass(frozen=True)
class WorkerLoad:
    """One worker over the last interval."""

    id: str
    model: str
    host: str
    pid: int
    running: int
    waiting: int
    kv_used: float  # share of the KV blocks that sequences hold, 0 to 1
    kv_cached: float  # share that only the prefix cache holds
    kv_dtype: str
    digest: str  # of all that decides its answers
    numerics: str  # what decides how it rounds
    blocks: dict[str, int]  # free + used + cached + quarantined are all; shared are among the used, host in CPU memory
    preemptions: int
    preemption_reasons: dict[str, int]  # which way each went, and why
    swapped: int  # sequences whose memory is on the host now
    tokens_per_s: float
    drafted_tokens: int  # guessed and verified since the engine's start
    accepted_tokens: int  # of those


@dataclass(frozen=True)
class Snapshot:
    queued: dict[str, int]
    workers: list[WorkerLoad]
    memory: list[WorkerMemory]  # of the workers whose memory was asked for

    @property
    def tokens_per_s(self) -> float:
        return sum(worker.tokens_per_s for worker in self.workers)


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


class Reader:
    """One reading after the other; rates are those since the one before. Only workers whose id begins with `prefix`."""

    def __init__(self, client: AsyncClient, prefix: str, *, memory: bool) -> None:
        self._client = client
        self._prefix = prefix
        self._memory = memory
        self._made: dict[str, int] = {}
        self._since = time.monotonic()

    async def read(self) -> Snapshot:
        queued = await self._client.queue_depths()
        now, found = time.monotonic(), await self._client.workers()
        workers = [worker for worker in found if worker.id.startswith(self._prefix)]
        loads = [_load(worker, self._made.get(worker.id), now - self._since) for worker in workers]
        self._made, self._since = {worker.id: worker.stats.generated_tokens for worker in workers}, now
        return Snapshot(queued, loads, await self._ask(workers) if self._memory else [])

    async def _ask(self, workers: list[WorkerInfo]) -> list[WorkerMemory]:
        questions = (self._client.worker_memory(worker.id) for worker in workers)
        answers = await asyncio.gather(*questions, return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        for failure in failures:
            if not isinstance(failure, WorkerNotFound):  # that one loads its model, or has just gone
                raise failure
        return [answer for answer in answers if isinstance(answer, WorkerMemory)]


def _load(worker: WorkerInfo, made_before: int | None, seconds: float) -> WorkerLoad:
    """`made_before`: tokens at the reading before; None if that did not have the worker."""
    stats = worker.stats
    blocks = max(1, stats.used_blocks + stats.cached_blocks + stats.free_blocks)
    made = 0 if made_before is None else max(0, stats.generated_tokens - made_before)
    return WorkerLoad(
        id=worker.id,
        model=worker.model,
        host=worker.host,
        pid=worker.pid,
        running=stats.running,
        waiting=stats.waiting,
        kv_used=round(stats.used_blocks / blocks, 4),
        kv_cached=round(stats.cached_blocks / blocks, 4),
        kv_dtype=stats.kv_dtype,
        digest=worker.digest,
        numerics=worker.numerics,
        blocks=stats.blocks(),
        preemptions=stats.preemptions,
        preemption_reasons=stats.reasons(),
        swapped=stats.swapped,
        tokens_per_s=round(made / max(seconds, 1e-3), 1),
        drafted_tokens=stats.drafted_tokens,
        accepted_tokens=stats.accepted_tokens,
    )


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
