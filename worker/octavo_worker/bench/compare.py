"""The service beside the engine alone: what the queue, the agent and the gateway cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from octavo_worker.bench.engine import EngineBench
from octavo_worker.bench.report import median
from octavo_worker.bench.service import ServiceBench, service
from octavo_worker.bench.workloads import Work
from octavo_worker.engine.options import ModelOptions
from octavo_worker.model import load_runner

FIRST_TOKEN_RUNS = 21


def compare_service(
    options: ModelOptions, works: Callable[[int], dict[str, list[Work]]], rounds: int, console: Console
) -> list[dict[str, Any]]:
    """One row a workload with the throughput of both, and one with the time to the first token of both."""
    engine = EngineBench(load_runner(options), options)
    flags = ["--load-format", options.load_format, "--max-model-len", str(options.max_model_len)]
    if options.threads is not None:
        flags += ["--threads", str(options.threads)]
    with service(Path(options.model), flags) as running:
        rows = [
            _throughput(name, work, engine, running, rounds, console) for name, work in works(engine.vocab_size).items()
        ]
        rows.append(_first_token(engine, running, console))
    return rows


def _throughput(
    name: str, work: list[Work], engine: EngineBench, running: ServiceBench, rounds: int, console: Console
) -> dict[str, Any]:
    generated = sum(w.max_tokens for w in work)
    alone, queued, cpu = [], [], []
    warm_up = [Work(w.prompt, min(w.max_tokens, 8)) for w in work]
    engine.run(warm_up)
    running.run(warm_up, salt=-1)
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
    """Medians at concurrency 1; every prompt is new, so that no prefix is cached."""
    alone, direct, served = [], [], []
    for number in track(range(FIRST_TOKEN_RUNS), description="first token", console=console, transient=True):
        prompts = [
            [(7 * (2 * number + which) + 13 * position) % min(997, engine.vocab_size) for position in range(128)]
            for which in range(2)
        ]
        alone.append(engine.run([Work(prompts[0], 1)]).first_token[0])
        direct.append(running.first_token_direct(Work(prompts[0], 1)))
        served.append(running.first_token_http(Work(prompts[1], 1)))
    return {
        "workload": "first token, 128 in",
        "engine_ttft_ms": round(1e3 * median(alone), 2),
        "queue_ttft_ms": round(1e3 * median(direct), 2),
        "service_ttft_ms": round(1e3 * median(served), 2),
        "queue_added_ms": round(1e3 * (median(direct) - median(alone)), 2),
        "added_ms": round(1e3 * (median(served) - median(alone)), 2),
    }
