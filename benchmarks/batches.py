"""Batches: what the clerk, the queue and the storage can do, and what a batch costs and gains on a real worker.

    python benchmarks/batches.py [--lines 50000] [--workers 2] [--out FILE]
    python benchmarks/batches.py --linear [--rate 200] [--seconds 25]
    python benchmarks/batches.py --order [--model llama-8b --device cuda] [--prompts 64 --each 64 --prefix 2048]
    python benchmarks/batches.py --beside [--model llama-8b --device cuda] [--lines 640] [--seconds 25]

Alone: many lines of 868 bytes on fake workers that generate nothing, answers of 32 tokens in one piece. Tells the
seconds until the batch is `in_progress` and until it has completed, lines a second in between, the most memory of the
clerk, and of the server above what it had idle. With `--linear` the workers have a fixed rate, and there are 1, 2 and 4
of them: the share of their rates that a batch gets, from its first line to the end of its last job.

With `--order`: shuffled lines of prompts that begin alike, as they are in the file and with those together that share a
beginning, in turns on one worker.

With `--beside`: jobs of class `normal`, with prompts of `--prompt` tokens, that arrive at random at half of the rate at
which the worker does them when many wait, alone and beside a batch; and a batch alone beside the engine that gets the
same lines without a queue. Both modes have a server, a worker and a clerk as processes, and no gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from batch_fakes import measure
from batch_service import Fleet, fleet, prompts_of, reached, token_ids

from octavo import AsyncClient
from octavo.service.clerk.order import RUN_LINES
from octavo.service.server import EmbeddedServer
from octavo.terms.batches import BatchInfo, BatchStatus
from octavo.terms.stats import WorkerStats
from octavo_worker.bench.report import encode, percentile, report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import Work
from octavo_worker.contract.files import model_folder

HEARTBEAT_S = 1.5


async def on_worker(rig: Fleet, work: list[Work], run_lines: int) -> dict[str, Any]:
    """A batch with nothing beside it."""
    before = await rig.stats()
    with rig.clerk(run_lines):
        batch_id = await rig.begin(work)
        executed_at = await rig.executed(batch_id)
        info = await rig.end(batch_id)
    await asyncio.sleep(HEARTBEAT_S)
    return rates(info, executed_at, before, await rig.stats())


def rates(info: BatchInfo, executed_at: float, before: WorkerStats, after: WorkerStats) -> dict[str, Any]:
    whole = reached(info, BatchStatus.COMPLETED) - info.created_at
    executing = executed_at - reached(info, BatchStatus.IN_PROGRESS)
    steps = after.steps - before.steps
    return {
        "lines": info.total,
        "seconds": round(whole, 1),
        "executing_s": round(executing, 1),
        "lines_per_s": round(info.total / executing, 2),
        "output_tokens_per_s": round(info.usage.output_tokens / executing, 1),
        "prompt_tokens": after.prompt_tokens - before.prompt_tokens,
        "cached_tokens": after.cached_tokens - before.cached_tokens,
        "steps": steps,
        "step_ms": round(1e3 * executing / max(1, steps), 2),
    }


async def compare_orders(rig: Fleet, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """In turns, each time with other prompts."""
    await rig.ready()

    def work_of(prompts: int, each: int, tokens: int, seed: int) -> list[Work]:
        return prompts_of(prompts, each, asked.prefix, asked.own, tokens, vocabulary=rig.vocabulary, seed=seed)

    await on_worker(rig, work_of(2, 8, 2, 99), RUN_LINES)  # a warm-up
    rows: list[dict[str, Any]] = []
    for turn in range(asked.rounds):
        for name, run_lines in (("file", 1), ("together", RUN_LINES)):
            work = work_of(asked.prompts, asked.each, asked.tokens, len(rows))
            row = {"what": "order", "order": name, "turn": turn, "prompts": asked.prompts, "prefix": asked.prefix}
            rows.append(row | await on_worker(rig, work, run_lines))
            print(rows[-1], flush=True)
    lines_per_s = {name: percentile([r["lines_per_s"] for r in rows if r["order"] == name], 0.5) for name in
                   ("file", "together")}  # fmt: skip
    rows.append({"what": "order", "gain": round(lines_per_s["together"] / lines_per_s["file"], 3)})
    return rows


def lines_of(asked: argparse.Namespace, vocabulary: int, count: int, seed: int) -> list[Work]:
    """Lines of unequal lengths, 256 and 256 tokens on average by default."""
    chance = random.Random(seed)
    least, most = asked.line_tokens // 2, asked.line_tokens * 3 // 2
    lengths = [(chance.randint(least, most), chance.randint(least, most)) for _ in range(count)]
    return [Work(token_ids(prompt, vocabulary, chance), tokens) for prompt, tokens in lengths]


def jobs_of(asked: argparse.Namespace, vocabulary: int, count: int, seed: int) -> list[Work]:
    """Jobs of class normal. No two seeds give equal prompts, of which a worker would remember the keys and values."""
    chance = random.Random(seed)
    return [Work(token_ids(asked.prompt, vocabulary, chance), asked.tokens) for _ in range(count)]


async def first_token(client: AsyncClient, model: str, work: Work) -> float:
    """Seconds until a job of class normal said something. Follows it to its end."""
    began, first = time.perf_counter(), None
    sampling = {"max_tokens": work.max_tokens, "ignore_eos": True, "temperature": 0.0}
    job = await client.submit(work.prompt, model=model, sampling=sampling, follow=True)
    async for _ in job.events():
        first = first or time.perf_counter() - began
    assert first is not None
    return first


async def arrivals(rig: Fleet, asked: argparse.Namespace, rate: float, seed: int) -> dict[str, Any]:
    """Jobs that arrive at random, the same each time, and what the worker did meanwhile."""
    chance, at = random.Random(5), [0.0]
    while at[-1] < asked.seconds:
        at.append(at[-1] + chance.expovariate(rate))
    work = jobs_of(asked, rig.vocabulary, len(at), seed)
    before, began = await rig.stats(), time.perf_counter()
    async with AsyncClient(rig.url) as client:

        async def ask(due: float, one: Work) -> float:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            return await first_token(client, rig.model, one)

        times = await asyncio.gather(*map(ask, at, work))
    seconds = time.perf_counter() - began
    await asyncio.sleep(HEARTBEAT_S)
    after = await rig.stats()
    steps, tokens = after.steps - before.steps, after.generated_tokens - before.generated_tokens
    return {
        "jobs": len(times),
        "jobs_per_s": round(rate, 2),
        "first_token_p50_s": round(percentile(times, 0.5), 4),
        "first_token_p99_s": round(percentile(times, 0.99), 4),
        "step_ms": round(1e3 * seconds / steps, 2),
        "tokens_per_s": round(tokens / seconds, 1),
        "batch_tokens_per_s": round(max(0, tokens - len(at) * asked.tokens) / seconds, 1),
    }


async def capacity(rig: Fleet, asked: argparse.Namespace) -> float:
    """Jobs a second while many wait. The first turn is a warm-up."""
    rate = 0.0
    async with AsyncClient(rig.url) as client:
        for count in (asked.at_once // 4, asked.at_once):
            work = jobs_of(asked, rig.vocabulary, count, seed=count)
            began = time.perf_counter()
            await asyncio.gather(*(first_token(client, rig.model, one) for one in work))
            rate = count / (time.perf_counter() - began)
    return rate


async def beside(rig: Fleet, asked: argparse.Namespace) -> list[dict[str, Any]]:
    await rig.ready()
    rate = await capacity(rig, asked)
    rows: list[dict[str, Any]] = [{"what": "jobs alone", **await arrivals(rig, asked, rate / 2, 1)}]
    print(rows[-1], flush=True)
    with rig.clerk():
        batch_id = await rig.begin(lines_of(asked, rig.vocabulary, 10_000, seed=3))
        await rig.busy(asked.rows // 2)
        await asyncio.sleep(asked.settle)
        row = {"what": "jobs beside a batch", **await arrivals(rig, asked, rate / 2, 2)}
        still = (await rig.end(batch_id, cancel=True)).total
    usual = rows[0]["first_token_p99_s"]
    row["most_p99_s"] = round(1.2 * usual + row["step_ms"] / 1e3, 4)
    row["ratio"] = round(row["first_token_p99_s"] / usual, 3)
    rows.append(row | {"batch_lines": still})
    print(rows[-1], flush=True)
    work = lines_of(asked, rig.vocabulary, asked.lines, seed=4)
    rows.append({"what": "a batch alone", **await on_worker(rig, work, RUN_LINES)})
    print(rows[-1], flush=True)
    return rows


def engine_alone(asked: argparse.Namespace, path: Path) -> None:
    """The lines of the batch that is alone, without a queue: seconds and tokens."""
    from octavo_worker.assembly.loading import load_runner
    from octavo_worker.bench.engine import EngineBench
    from octavo_worker.contract.messages import BATCH
    from octavo_worker.contract.options import ModelOptions

    given = {"load_format": "dummy" if asked.model in SHAPES else "auto", "device": asked.device}
    limits = {"max_running": asked.rows, "max_model_len": asked.model_len, "num_blocks": asked.num_blocks}
    options = ModelOptions.of_flags(str(path), given | limits)
    engine = EngineBench(load_runner(options), options)
    work = lines_of(asked, engine.vocab_size, asked.lines, seed=4)
    engine.run([Work(one.prompt, min(one.max_tokens, 8)) for one in work[: asked.rows]])
    timing = engine.run(work, priority=BATCH)
    print(json.dumps({"seconds": timing.seconds, "tokens": timing.generated}))


def beside_engine(row: dict[str, Any], asked: argparse.Namespace) -> dict[str, Any]:
    """The share of the engine's speed that the batch alone has."""
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--engine"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    speed = found["tokens"] / found["seconds"]
    told = {"what": "its engine", "lines": asked.lines, "seconds": round(found["seconds"], 1)}
    told |= {"output_tokens_per_s": round(speed, 1), "ratio": round(row["output_tokens_per_s"] / speed, 3)}
    return told | {"ratio_of_whole": round(found["seconds"] / row["seconds"], 3)}


def on_fakes(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """The modes with fake workers."""
    rows: list[dict[str, Any]] = []
    for workers in (1, 2, 4) if asked.linear else (asked.workers,):
        count = round(workers * asked.rate * asked.seconds) if asked.linear else asked.lines
        with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as server:
            rate = asked.rate if asked.linear else 0.0
            found = asyncio.run(measure(Path(folder) / "files", server.url, count, workers, rate))
        if asked.linear:
            share = found["executed_per_second"] / (workers * asked.rate)
            found = {"workers": workers, "rate": asked.rate, "share_of_linear": round(share, 3), **found}
        rows.append(found)
    return rows


def on_model(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """The modes with a real worker."""
    with tempfile.TemporaryDirectory() as folder:
        is_shape = asked.model in SHAPES
        path = write_shape(asked.model, Path(folder)) if is_shape else model_folder(asked.model)
        if asked.engine:
            engine_alone(asked, path)
            return []
        flags = ["--device", asked.device, "--max-running", str(asked.rows), "--max-model-len", str(asked.model_len)]
        flags += ["--load-format", "dummy"] if is_shape else []
        flags += ["--num-blocks", str(asked.num_blocks)] if asked.num_blocks else []
        with fleet(path, flags) as rig:
            rows = asyncio.run(compare_orders(rig, asked) if asked.order else beside(rig, asked))
    if asked.beside:
        rows.append(beside_engine(rows[-1], asked))
    return rows


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--order", action="store_true", help="with and without lines together that begin alike")
    mode.add_argument("--linear", action="store_true", help="1, 2 and 4 fake workers of a fixed rate")
    mode.add_argument("--beside", action="store_true", help="jobs beside a batch, and a batch beside the engine")
    parser.add_argument("--lines", type=int, default=50_000, help="of a batch that is alone")
    parser.add_argument("--workers", type=int, default=2, help="fake ones")
    parser.add_argument("--rate", type=float, default=200.0, help="jobs a second of each fake worker, with --linear")
    parser.add_argument("--model", default="smollm-135m", help=f"a folder, demo, or one of {', '.join(SHAPES)}")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rows", type=int, default=256, help="the worker's --max-running")
    parser.add_argument("--model-len", type=int, default=4096, help="the worker's --max-model-len")
    parser.add_argument("--num-blocks", type=int, help="the worker's --num-blocks")
    parser.add_argument("--prompts", type=int, default=64, help="beginnings that lines share")
    parser.add_argument("--each", type=int, default=64, help="lines of each of them")
    parser.add_argument("--prefix", type=int, default=2048, help="tokens that lines share")
    parser.add_argument("--own", type=int, default=64, help="tokens of a line behind them")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer, with --order and of jobs")
    parser.add_argument("--rounds", type=int, default=1, help="of each order")
    parser.add_argument("--prompt", type=int, default=2000, help="tokens of a job's prompt")
    parser.add_argument(
        "--line-tokens", type=int, default=256, help="of a line's prompt, and of its answer, on average"
    )
    parser.add_argument("--at-once", type=int, default=48, help="jobs that measure the worker's rate")
    parser.add_argument("--seconds", type=float, default=25.0, help="of arrivals")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds between the batch and what is beside it")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    asked = parsed()
    if asked.order or asked.beside:
        rows, told = on_model(asked), {"model": asked.model, "device": asked.device}
    else:
        rows, told = on_fakes(asked), {}
    if asked.engine:
        return
    document = report("batches", rows, **told)
    print(encode(document))
    if asked.out is not None:
        write(document, asked.out)


if __name__ == "__main__":
    main()
