"""A rank is killed under load: how long its engine, its jobs and its GPU's memory take.

usage: python benchmarks/killed_rank.py [--tensor-parallel 2] [--model llama-8b] [--jobs 16] [--output 6000]
           [--device cuda|cpu] [--kv-memory 13] [--victims 0,1] [--resume] [--out FILE.json]

A worker gets all jobs. Then a second one starts, on GPUs of its own if there are enough, else on the same. One process
of the first one's engine is killed (SIGKILL) amid the answers. Seconds from then on: `gone_s` until no process of that
engine is left, `memory_freed_s` until its GPUs have nine tenths of its memory back, `continued_s` until the first job,
`all_continued_s` until each job has a new token by the other worker. The jobs are cancelled then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from peers.workers import Place, queue_place, requests, submitted

from octavo import AsyncClient
from octavo.service.service import device_groups, gpus
from octavo.terms.models import JobInfo
from octavo.terms.workers import WorkerInfo
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.contract.files import model_folder

PROMPT = 128
RUNNING_TOKENS = 16
"""Tokens of each job before the second worker is started: prompts are over by then."""
POLL_S = 0.005
PATIENCE_S = 60.0
FREED = 0.9


class Engine:
    """The processes of a worker's engine, rank 0 first."""

    def __init__(self, worker: WorkerInfo, ranks: int) -> None:
        first = psutil.Process(worker.stats.engine_pid)
        further = [each for each in first.children() if "octavo_worker.assembly.rank_process" in each.cmdline()]
        self.ranks = [first, *sorted(further, key=lambda each: int(each.cmdline()[each.cmdline().index("--rank") + 1]))]
        assert len(self.ranks) == ranks, f"an engine of {ranks} ranks has {len(self.ranks)} processes"

    def is_gone(self) -> bool:
        return all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in self.ranks)


def used() -> list[int]:
    """Bytes in use on each GPU, by any process."""
    memory = [torch.cuda.mem_get_info(number) for number in range(torch.cuda.device_count())]
    return [total - free for free, total in memory]


def taken(before: list[int]) -> dict[int, int]:
    """Bytes of each GPU on which much more is in use than before."""
    differences = {number: now - then for number, (now, then) in enumerate(zip(used(), before, strict=True))}
    return {number: size for number, size in differences.items() if size > 1 << 28}


async def infos(client: AsyncClient, jobs: list[str]) -> list[JobInfo]:
    return await asyncio.gather(*(client.info(job) for job in jobs))


async def until_running(client: AsyncClient, jobs: list[str]) -> None:
    """Until each job has some tokens. All have to be running then, so that the second worker finds none to claim."""
    deadline = time.monotonic() + PATIENCE_S
    while any(info.tokens < RUNNING_TOKENS for info in await infos(client, jobs)):
        if time.monotonic() > deadline:
            raise SystemExit("the first worker has no room for all jobs: give fewer --jobs, or more --kv-memory.")
        await asyncio.sleep(POLL_S)


async def watch(
    client: AsyncClient, jobs: list[str], engine: Engine, victim: int, held: dict[int, int]
) -> dict[str, float]:
    """Kills a rank of the engine, which holds so many bytes of these GPUs."""
    before = await infos(client, jobs)
    if any(info.status.is_terminal for info in before):
        raise SystemExit("jobs have ended before the second worker was there: give them more --output.")
    had, memory = {info.id: info for info in before}, used()
    seen: dict[str, float] = {}
    engine.ranks[victim].send_signal(signal.SIGKILL)
    began = time.monotonic()
    wanted = {"gone_s", "continued_s", "all_continued_s"} | ({"memory_freed_s"} if held else set())
    while wanted - seen.keys() and time.monotonic() < began + PATIENCE_S:
        if engine.is_gone():
            seen.setdefault("gone_s", time.monotonic() - began)
        now = used()
        if all(memory[number] - now[number] >= FREED * size for number, size in held.items()):
            seen.setdefault("memory_freed_s", time.monotonic() - began)
        moved = [
            info.worker not in (None, had[info.id].worker) and info.tokens > had[info.id].tokens
            for info in await infos(client, jobs)
        ]
        if any(moved):
            seen.setdefault("continued_s", time.monotonic() - began)
        if all(moved):
            seen.setdefault("all_continued_s", time.monotonic() - began)
        await asyncio.sleep(POLL_S)
    return {name: round(seconds, 3) for name, seconds in seen.items() if name in wanted}


def places(options: argparse.Namespace) -> list[str | None]:
    """The GPUs of the two workers."""
    if options.device == "cpu":
        return [None, None]
    groups = device_groups(gpus(), options.tensor_parallel)
    return [groups[0], groups[min(1, len(groups) - 1)]]


async def measure(place: Place, model: Path, victim: int, options: argparse.Namespace) -> dict[str, Any]:
    names = ("device", "tensor_parallel", "kv_memory", "threads")
    flags = {name: getattr(options, name) for name in names}
    flags |= {"model": model, "max_running": options.jobs, "max_model_len": PROMPT + options.output}
    flags |= {"load_format": "dummy" if model.name in SHAPES else "auto"}
    first, second = places(options)
    before = used()
    place.start("first", flags, first)
    async with AsyncClient(place.url) as client:
        (worker,) = await place.serving(client, 1)
        held = taken(before)
        asked = await requests(client, options.jobs, PROMPT, options.output, seed=victim)
        jobs = await submitted(client, asked, "killed")
        await until_running(client, jobs)
        place.start("second", flags, second)
        await place.serving(client, 2)
        seconds = await watch(client, jobs, Engine(worker, options.tensor_parallel), victim, held)
        for job in jobs:
            await client.cancel(job)
    told = {"ranks": options.tensor_parallel, "victim": victim, "jobs": len(jobs), "same_gpus": first == second}
    return told | {"memory_gib": {number: round(size / 2**30, 2) for number, size in held.items()}} | seconds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensor-parallel", type=int, default=2)
    parser.add_argument("--model", default="llama-8b")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--output", type=int, default=6000, help="tokens: enough to last until the second worker is up")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--kv-memory", type=float, default=13.0, help="GiB of all ranks of a worker together")
    parser.add_argument("--threads", type=int, help="of each rank on a CPU")
    parser.add_argument("--victims", help="ranks to kill, one after the other; the first and the last by default")
    parser.add_argument("--resume", action="store_true", help="keep what --out holds and run the rest")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse()
    victims = [0, options.tensor_parallel - 1] if options.victims is None else map(int, options.victims.split(","))
    known = json.loads(options.out.read_text())["rows"] if options.resume and options.out.exists() else []
    rows = [row for row in known if row["ranks"] == options.tensor_parallel]
    with tempfile.TemporaryDirectory() as folder:
        is_shape = options.model in SHAPES
        model = write_shape(options.model, Path(folder)) if is_shape else model_folder(options.model)
        for victim in victims:
            if victim not in [row["victim"] for row in rows]:
                with queue_place() as place:
                    rows.append(asyncio.run(measure(place, model, victim, options)))
                if options.out is not None:
                    write(report("killed-rank", rows, model=options.model, device=options.device), options.out)
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
