"""The service beside the engine alone: what the queue, the agent and the gateway cost."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import track

from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.engine import EngineBench
from octavo_worker.bench.report import median
from octavo_worker.bench.service import ServiceBench, service
from octavo_worker.bench.workloads import Work
from octavo_worker.contract.options import ModelOptions

FIRST_TOKEN_RUNS = 21

Works = Callable[[int, int], dict[str, list[Work]]]
"""Workloads by name, for a vocabulary's size and a context's length."""


def compare_service(options: ModelOptions, works: Works, rounds: int, console: Console) -> list[dict[str, Any]]:
    """One row a workload with the throughput of both, and one with the time to the first token of both.

    The KV cache is as large as the workloads need, so that after the warm-up both have written to all of it: a worker
    that has run for a while is measured, not one that still gets its memory from the system page by page.
    """
    options = msgspec.structs.replace(options, num_blocks=_blocks(works, options))
    engine = EngineBench(load_runner(options), options)
    with service(Path(options.model), _flags(options)) as running:
        rows = [
            _throughput(name, work, engine, running, rounds, console)
            for name, work in works(engine.vocab_size, engine.max_model_len).items()
        ]
        rows.append(_first_token(engine, running, console))
    return rows


def _blocks(works: Works, options: ModelOptions) -> int:
    """Blocks of the largest workload, an eighth more, and enough for one sequence of any length."""
    size = options.block_size
    needed = [sum(-(-(len(w.prompt) + w.max_tokens) // size) for w in work) for work in works(2, sys.maxsize).values()]
    return max(9 * max(needed) // 8, -(-(options.max_model_len or 0) // size)) + 1


def _as_prompts(work: list[Work]) -> list[Work]:
    """The same lengths, but almost all of it prompt: it writes to as many blocks in less time."""
    most = [len(w.prompt) + w.max_tokens - 2 for w in work]
    return [Work(list(itertools.islice(itertools.cycle(w.prompt), n)), 2) for w, n in zip(work, most, strict=True)]


def _flags(options: ModelOptions) -> list[str]:
    """Flags that make a worker's engine the same as the one alone."""
    names = ("load_format", "max_model_len", "num_blocks", "threads", "device", "dtype")
    values = {name: getattr(options, name) for name in names}
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None]


def _throughput(
    name: str, work: list[Work], engine: EngineBench, running: ServiceBench, rounds: int, console: Console
) -> dict[str, Any]:
    generated = sum(w.max_tokens for w in work)
    alone, queued, cpu = [], [], []
    engine.run(_as_prompts(work))
    running.run(_as_prompts(work), salt=-1)
    for number in track(range(rounds), description=name, console=console, transient=True):
        before = time.process_time()
        alone.append(engine.run(work).seconds)
        engine_alone = time.process_time() - before
        spent = running.cpu_seconds()
        queued.append(running.run(work, salt=number).seconds)
        now = running.cpu_seconds()
        cpu.append({name: now[name] - spent[name] for name in now} | {"engine alone": engine_alone})
    return {
        "workload": name,
        "engine_tokens_per_s": round(generated / median(alone), 1),
        "service_tokens_per_s": round(generated / median(queued), 1),
        "service_share": round(median(alone) / median(queued), 3),
        "cpu_ms_per_1000_tokens": {name: round(1e6 / generated * median([c[name] for c in cpu]), 1) for name in cpu[0]},
        "seconds": {"engine": alone, "service": queued},
    }


def _first_token(engine: EngineBench, running: ServiceBench, console: Console) -> dict[str, Any]:
    """Medians at concurrency 1; every prompt is new, so that no prefix is cached. The three take turns at being the
    first: each reads the same weights, and finds them in the processor's caches after another one of its process."""
    ways: dict[str, Callable[[Work], float]] = {
        "engine": lambda work: engine.run([work]).first_token[0],
        "queue": running.first_token_direct,
        "service": running.first_token_http,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in track(range(FIRST_TOKEN_RUNS), description="first token", console=console, transient=True):
        turn = number % len(ways)
        for which, name in enumerate([*ways, *ways][turn : turn + len(ways)]):
            start = 7 * (len(ways) * number + which)
            prompt = [(start + 13 * position) % min(997, engine.vocab_size) for position in range(128)]
            seconds[name].append(ways[name](Work(prompt, 1)))
    times = {name: 1e3 * median(taken) for name, taken in seconds.items()}
    return {
        "workload": "first token, 128 in",
        **{f"{name}_ttft_ms": round(time, 2) for name, time in times.items()},
        "queue_added_ms": round(times["queue"] - times["engine"], 2),
        "added_ms": round(times["service"] - times["engine"], 2),
    }
