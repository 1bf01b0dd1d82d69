"""Batches: what the clerk, the queue and the storage can do, and what a batch costs and gains on a real worker.

    python benchmarks/batches.py [--lines 50000] [--workers 2] [--out FILE]
    python benchmarks/batches.py --order [--model llama-8b --device cuda] [--prompts 64 --each 64 --prefix 2048]
    python benchmarks/batches.py --beside [--model llama-8b --device cuda] [--lines 640] [--seconds 25]

Alone: many lines of 868 bytes on fake workers that generate nothing, answers of 32 tokens in one piece. Tells the
seconds until the batch is `in_progress` and until it has completed, lines a second in between, the most memory of the
clerk, and of the server above what it had idle.

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
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from batch_service import Fleet, fleet, prompts_of, reached, token_ids

from octavo import AsyncClient
from octavo.client.batches import BatchClient
from octavo.queue import wire
from octavo.queue.batches.calls import NewBatch, NewFile
from octavo.queue.batches.keys import BATCH, FILE, new_id
from octavo.queue.calls import run, run_many
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, Cell, Claim
from octavo.service.clerk.order import RUN_LINES
from octavo.service.server import EmbeddedServer
from octavo.service.storage import open_storage
from octavo.service.storage.interface import in_pieces
from octavo.service.storage.places import file_name
from octavo.terms.batches import BatchInfo, BatchStatus
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.stats import WorkerStats
from octavo.terms.workers import ModelCard, WorkerInfo
from octavo_worker.bench.report import encode, percentile, report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import Work
from octavo_worker.contract.files import model_folder

MODEL, TOKENS, AT_ONCE = "bench", 32, 64
CELL, KEYS = Cell(), Keys()
URL = "/v1/chat/completions"


def lines(count: int) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "x" * 560}, {"role": "user", "content": "hello " * 20}],
        "max_tokens": TOKENS,
    }
    each = ({"custom_id": f"request-{i}", "method": "POST", "url": URL, "body": body} for i in range(count))
    return b"".join(json.dumps(line).encode() + b"\n" for line in each)


async def serve(url: str, number: int) -> None:
    """One fake worker: claims, appends all tokens in one piece, finishes."""
    name, owned = f"fake{number}", True
    async with connect(url) as connection:
        beat_at = 0.0
        while True:
            if time.monotonic() - beat_at > 2.0:
                stats: dict[str, Any] = {"max_running": 256}
                info = WorkerInfo(id=name, model=MODEL, host="h", pid=os.getpid(), started_at=0.0, stats=stats)
                await run(connection, CELL.heartbeat(name, [], lease_ms=60_000, info=wire.encode_worker(info)))
                await run(connection, CELL.reap())
                beat_at = time.monotonic()
            call = CELL.claim(MODEL, name, max_jobs=AT_ONCE, max_tokens=1 << 20, lease_ms=60_000, idle=owned)
            jobs = (await run(connection, call)).jobs
            if jobs:
                await _generate(connection, jobs)
            else:
                await connection.blpop([KEYS.bell(MODEL)], timeout=1)


async def _generate(connection: Any, jobs: tuple[Claim, ...]) -> None:
    chunk = Chunk(token_ids=(7,) * TOKENS, texts=(" seven",) * TOKENS, finish_reason="length")
    terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(100, TOKENS))
    result = wire.encode_result(terminal, [chunk])
    await run(connection, CELL.append([Append(job.job_id, job.token, 0, chunk) for job in jobs]))
    await run_many(connection, [CELL.finish(job.job_id, job.token, terminal, result) for job in jobs])


async def measure(folder: Path, url: str, count: int, workers: int) -> dict[str, Any]:
    async with BatchClient(url) as client:
        card = ModelCard(name=MODEL, max_model_len=4096, vocab_size=9, has_tokenizer=True, created_at=1.0)
        await run(client.redis, CELL.register_model(card))
        data, file_id = lines(count), new_id(FILE)
        await open_storage(str(folder)).put(file_name(file_id), in_pieces(data))
        await client.note_file(NewFile(file_id, "acme", "in", "batch", len(data), "00"), cap=1 << 40)
        with ExitStack() as stack:

            def start(*words: str) -> psutil.Process:
                environment = os.environ | {"OCTAVO_FILES": str(folder), "OCTAVO_REDIS_URL": url}
                process = subprocess.Popen([sys.executable, *words], env=environment, stderr=subprocess.DEVNULL)
                stack.callback(process.wait)
                stack.callback(process.kill)
                return psutil.Process(process.pid)

            clerk = start("-m", "octavo.service.clerk")
            for number in range(workers):
                start(__file__, "--serve", url, "--number", str(number))
            await asyncio.sleep(3.0)
            idle = int((await client.redis.info("memory"))["used_memory"])
            return await _watched(client, clerk, file_id, idle)


async def _watched(client: BatchClient, clerk: psutil.Process, file_id: str, idle: int) -> dict[str, Any]:
    began, begun = time.monotonic(), 0.0
    batch = await client.create(NewBatch(new_id(BATCH), "acme", URL, file_id, "24h", 86_400))
    most_server = most_clerk = 0
    assert batch is not None
    cpu = sum(clerk.cpu_times()[:2])
    while not batch.status.is_terminal:
        if not begun and batch.total:
            begun = time.monotonic()
        most_server = max(most_server, int((await client.redis.info("memory"))["used_memory"]) - idle)
        most_clerk = max(most_clerk, clerk.memory_info().rss)
        await asyncio.sleep(0.1)
        batch = await client.batch(batch.id)
        assert batch is not None
    ended = time.monotonic()
    assert batch.completed == batch.total, batch
    return {
        "lines": batch.total,
        "seconds_until_in_progress": round(begun - began, 2),
        "seconds": round(ended - began, 1),
        "lines_per_second": round(batch.total / (ended - begun)),
        "clerk_cpu_us_a_line": round(1e6 * (sum(clerk.cpu_times()[:2]) - cpu) / batch.total),
        "most_clerk_mb": round(most_clerk / 1e6),
        "most_server_mb_above_idle": round(most_server / 1e6),
    }


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
    mode.add_argument("--beside", action="store_true", help="jobs beside a batch, and a batch beside the engine")
    parser.add_argument("--lines", type=int, default=50_000, help="of a batch that is alone")
    parser.add_argument("--workers", type=int, default=2, help="fake ones")
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
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    asked = parsed()
    if asked.serve:
        asyncio.run(serve(asked.serve, asked.number))
        return
    if asked.order or asked.beside:
        rows, told = on_model(asked), {"model": asked.model, "device": asked.device}
    else:
        told = {}
        with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as server:
            rows = [asyncio.run(measure(Path(folder) / "files", server.url, asked.lines, asked.workers))]
    if asked.engine:
        return
    document = report("batches", rows, **told)
    print(encode(document))
    if asked.out is not None:
        write(document, asked.out)


if __name__ == "__main__":
    main()
