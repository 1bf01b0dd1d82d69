"""Dialogues beside batches: the first token of a trace replayed in time, alone and with `octavo batch run` beside it.

    python benchmarks/classes.py TRACE [--device cuda --model llama-8b] [--load 0.57] [--seconds 45] [--lines 300,3000]
        [--rows 256] [--full-blocks 1500] [--out benchmarks/results/classes.json]

One service (server, gateway, one worker) is asked through HTTP: a job is posted and its stream followed to the end; the
time to the first token begins with the post. The trace is clipped to `--context` tokens a request, and its times are
stretched so that it offers `--load` of the jobs a second that the worker does when many wait. Each row begins with
nothing in the queue. `step_ms` is the mean of the steps beside the batch.

Then `high` jobs of one token come one after the other while as many batch jobs as there are rows run, and on a worker
whose KV cache, of `--full-blocks` blocks, is full of them. A `--model` that is a public shape has random weights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from octavo import AsyncClient
from octavo.terms.messages import JobStatus
from octavo.terms.stats import WorkerStats
from octavo_worker.bench.report import report, write
from octavo_worker.bench.service import ServiceBench, service
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.traces import TracedRequest, clip, read_trace, work_of
from octavo_worker.bench.workloads import Work
from octavo_worker.contract.files import model_folder

COMMAND_LINE = "from octavo.cli import main; main()"
BATCH_LENGTH = 900  # tokens of a job that is to run for long
TRIES = 20
Rows = list[dict[str, Any]]
POLL_S = 0.05


class Desk:
    """Clients of the service, and its own figures."""

    def __init__(self, bench: ServiceBench, model: str) -> None:
        self._address = urlsplit(bench.gateway_url)
        self.redis_url, self.model = bench.redis_url, model

    async def first_token(self, work: Work, priority: str = "normal") -> float:
        """Seconds until a job said something. Follows it to its end."""
        body = {"model": self.model, "prompt": work.prompt, "priority": priority}
        body["sampling"] = {"max_tokens": work.max_tokens, "ignore_eos": True, "temperature": 0.0}
        began = time.perf_counter()
        async with self._ask("POST", "/v1/jobs", json.dumps(body).encode()) as answer:
            job = json.loads(await answer.read())
        async with self._ask("GET", f"/v1/jobs/{job['id']}/stream", b"") as stream:
            while not (await stream.readline()).startswith(b"data:"):
                assert not stream.at_eof(), "the stream ended before its first token"
            first = time.perf_counter() - began
            while await stream.read(1 << 16):
                pass
        return first

    @asynccontextmanager
    async def _ask(self, method: str, path: str, body: bytes) -> AsyncIterator[asyncio.StreamReader]:
        """The body of an answer. A connection for each: clients of a service are many."""
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        head = [f"{method} {path} HTTP/1.1", f"Host: {self._address.netloc}", "Connection: close"]
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
        writer.write("\r\n".join(head).encode() + body)
        status = await reader.readline()
        assert b" 20" in status, status
        while (await reader.readline()).strip():
            pass
        try:
            yield reader
        finally:
            writer.close()

    async def stats(self) -> WorkerStats:
        async with AsyncClient(self.redis_url) as client:
            (worker,) = await client.workers()
            return worker.stats

    async def fill(self, count: int, prompt: int, tokens: int, is_full: Callable[[WorkerStats], bool]) -> None:
        """Batch jobs, until they fill the worker."""
        async with AsyncClient(self.redis_url) as client:
            sampling: dict[str, Any] = {"max_tokens": tokens, "ignore_eos": True}
            for number in range(count):
                ids = [(number + place) % 1000 for place in range(prompt)]
                await client.submit(ids, model=self.model, priority="batch", sampling=sampling)

        async def holds() -> bool:
            return is_full(await self.stats())

        await until(holds)

    async def clear(self) -> None:
        """Cancel what has not ended, and wait until the worker is idle."""
        async with AsyncClient(self.redis_url) as client:
            for status in (JobStatus.QUEUED, JobStatus.RUNNING):
                while found := await client.jobs(status=status, limit=1000):
                    await asyncio.gather(*(client.cancel(job.id) for job in found))
                    await asyncio.sleep(POLL_S)
        await until(self._is_idle)

    async def _is_idle(self) -> bool:
        return (await self.stats()).jobs == 0


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await holds():
            return
        await asyncio.sleep(POLL_S)


def summary(times: list[float]) -> dict[str, Any]:
    ordered = sorted(times)
    at = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4)  # noqa: E731
    return {"jobs": len(times), "first_token_p50_s": at(0.5), "first_token_p99_s": at(0.99), "most_s": at(1.0)}


async def capacity(desk: Desk, work: list[Work]) -> float:
    """Jobs a second while many wait."""
    began = time.perf_counter()
    await asyncio.gather(*(desk.first_token(w) for w in work))
    return len(work) / (time.perf_counter() - began)


@contextmanager
def batch_beside(desk: Desk, lines: list[Work]) -> Iterator[None]:
    """`octavo batch run` over a file of these lines, for as long as it lasts."""
    if not lines:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        rows = ({"prompt": w.prompt, "max_tokens": w.max_tokens, "ignore_eos": True} for w in lines)
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = ["batch", "run", str(source), f"{folder}/out.jsonl", "--model", desk.model]
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND_LINE, *command, "--redis-url", desk.redis_url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()


async def replay(desk: Desk, trace: list[TracedRequest], work: list[Work], stretch: float) -> dict[str, Any]:
    """The trace in its time, stretched, and what the worker did meanwhile."""
    before, began = await desk.stats(), time.perf_counter()
    first = trace[0].at or 0.0

    async def ask(request: TracedRequest, asked: Work) -> float:
        due = ((request.at or 0.0) - first) * stretch
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        return await desk.first_token(asked)

    times = await asyncio.gather(*(ask(request, asked) for request, asked in zip(trace, work, strict=True)))
    await asyncio.sleep(1.5)  # a heartbeat
    after, seconds = await desk.stats(), time.perf_counter() - began
    steps, asked_for = after.steps - before.steps, sum(w.max_tokens for w in work)
    generated = after.generated_tokens - before.generated_tokens
    return summary(times) | {
        "seconds": round(seconds, 1),
        "steps": steps,
        "tokens_per_s": round(generated / seconds, 1),
        "batch_tokens_per_s": round(max(0, generated - asked_for) / seconds, 1),
        "step_ms": round(1e3 * seconds / steps, 2),
        "preemptions": after.preemptions - before.preemptions,
    }


async def beside(desk: Desk, arguments: argparse.Namespace, rows: Rows, save: Callable[[], None]) -> None:
    """The trace, alone and beside batches."""
    trace, clipped = clip(read_trace(arguments.trace), arguments.context)
    work = work_of(trace, 2000)
    rate = await capacity(desk, work[: arguments.warm_up])
    rate = await capacity(desk, work[arguments.warm_up : 2 * arguments.warm_up])  # the first one was a warm-up
    at = [request.at or 0.0 for request in trace]
    count = max(2, int(arguments.load * rate * arguments.seconds))
    stretch = count / (arguments.load * rate) / (at[count] - at[0])
    told = {"jobs_per_s_at_most": round(rate, 2), "load": arguments.load, "clipped": clipped.requests, "of": len(trace)}
    for lines in (0, *arguments.lines):
        await desk.clear()
        with batch_beside(desk, work[-lines:] if lines else []):
            if lines:
                await asyncio.sleep(arguments.settle)
            row = {"what": "trace", "batch_lines": lines, **told}
            rows.append(row | await replay(desk, trace[:count], work[:count], stretch))
        compare(rows[-1], rows[0])
        print(rows[-1], flush=True)
        save()


def compare(row: dict[str, Any], alone: dict[str, Any]) -> None:
    """At most 20 % and one step of the batch worse than alone."""
    for name in ("p50", "p99"):
        key = f"first_token_{name}_s"
        row[f"ratio_{name}"] = round(row[key] / alone[key], 3)
        row[f"most_{name}_s"] = round(1.2 * alone[key] + row["step_ms"] / 1e3, 4)
    row["ratio"] = row["ratio_p99"]


async def behind(
    desk: Desk, what: str, jobs: int, prompt: int, is_full: Callable[[WorkerStats], bool]
) -> dict[str, Any]:
    """First tokens of `high` jobs, alone and behind batch jobs."""
    work = Work(list(range(7, 39)), 1)
    await desk.clear()
    alone = [await desk.first_token(work, "high") for _ in range(TRIES)]
    await desk.fill(jobs, prompt, BATCH_LENGTH, is_full)
    before, began = await desk.stats(), time.perf_counter()
    times = [await desk.first_token(work, "high") for _ in range(TRIES)]
    await asyncio.sleep(1.5)
    after = await desk.stats()
    step_s = (time.perf_counter() - began) / max(1, after.steps - before.steps)
    median, usual = statistics.median(times), statistics.median(alone)
    row = {"what": what, "batch_jobs": jobs, **summary(times), "alone_s": round(usual, 4)}
    row |= {"step_ms": round(1e3 * step_s, 2), "in_steps": round(median / step_s, 2), "running": before.running}
    row |= {"free_blocks": before.free_blocks + before.cached_blocks, "ratio": round(median / usual, 3)}
    await desk.clear()
    print(row, flush=True)
    return row


def has_all_rows(stats: WorkerStats) -> bool:
    return stats.running >= stats.max_running


def has_all_blocks(stats: WorkerStats) -> bool:
    """A worker that has just begun has no figures yet."""
    return stats.running > 0 and stats.free_blocks + stats.cached_blocks < stats.num_blocks // 12


def measure(arguments: argparse.Namespace) -> None:
    rows: Rows = []

    def save() -> None:
        if arguments.out is not None:
            told = {"model": arguments.model, "device": arguments.device, "trace": arguments.trace.name}
            document = report("classes", rows, **told)
            document["command"] = document["command"].replace(str(arguments.trace), arguments.trace.name)
            write(document, arguments.out)

    with tempfile.TemporaryDirectory() as folder:
        is_shape = arguments.model in SHAPES
        path = write_shape(arguments.model, Path(folder)) if is_shape else model_folder(arguments.model)
        flags = ["--device", arguments.device, "--max-running", str(arguments.rows), "--swap-memory", "2"]
        flags += ["--max-model-len", str(arguments.model_len), *(["--load-format", "dummy"] if is_shape else [])]
        with service(path, flags) as bench:
            desk = Desk(bench, path.name)
            asyncio.run(beside(desk, arguments, rows, save))
            rows.append(asyncio.run(behind(desk, "high behind all rows", arguments.rows, 16, has_all_rows)))
            save()
        with service(path, [*flags, "--num-blocks", str(arguments.full_blocks)]) as bench:
            desk, each = Desk(bench, path.name), (BATCH_LENGTH + 100) // 16
            jobs = max(8, arguments.full_blocks * 3 // 2 // each)
            rows.append(asyncio.run(behind(desk, "high behind a full KV cache", jobs, 100, has_all_blocks)))
            save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="CSV of arrival_s, input_tokens, output_tokens, plain or .gz")
    parser.add_argument("--model", default="demo", help=f"a folder, demo, or one of {', '.join(SHAPES)}")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--load", type=float, default=0.57, help="share of what the worker can do")
    parser.add_argument("--seconds", type=float, default=45.0, help="of each replay")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds between the batch and the replay beside it")
    parser.add_argument("--warm-up", type=int, default=96, help="requests that measure the worker's speed")
    parser.add_argument("--lines", type=lambda text: [int(n) for n in text.split(",")], default=[300, 3000])
    parser.add_argument("--rows", type=int, default=256, help="the worker's --max-running")
    parser.add_argument("--context", type=int, default=1000, help="tokens of a request of the trace at most")
    parser.add_argument("--model-len", type=int, default=1024, help="the worker's --max-model-len")
    parser.add_argument("--full-blocks", type=int, default=1500, help="the KV cache that batch jobs fill")
    parser.add_argument("--out", type=Path)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
