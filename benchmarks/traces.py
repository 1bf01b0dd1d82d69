"""Cost of traces: tokens a second and CPU time of a worker that exports spans, beside one that does not.

    python benchmarks/traces.py [--device cuda --model qwen3-0.6b --batch 256] [--tokens 200] [--rounds 9]
        [--kv-memory GIB] [--spans-alone] [--out benchmarks/results/traces.json]

Two workers of the same model, each on a server of its own; one has OpenTelemetry's variables, and a collector that
takes everything and does nothing. The same jobs, all of them with a trace, go to one and then to the other, in turns
that change their order. Before that, spans of jobs are told in this process, without any worker. Rates are medians over
the rounds. What a job costs is CPU time of the agent, its exporting thread included, of all rounds together, since the
system counts it in hundredths of a second. A `--model` that is a public shape has random weights.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import psutil
from batch_service import Fleet, fleet, token_ids

from octavo import AsyncClient
from octavo.queue.keys import Keys
from octavo.queue.protocol import Claim
from octavo.service.ports import free_port
from octavo.service.tracing.wanted import open_tracing
from octavo.terms.messages import JobStatus, Terminal, Usage
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo.terms.tracing.context import TraceContext
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.agent.telemetry.traces import Traces
from octavo_worker.bench.report import median, report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.contract.files import model_folder

RESULT = Path(__file__).parent / "results" / "traces.json"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROMPT = 32  # tokens
COLLECTOR = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Sink(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Sink).serve_forever()
"""


class Round(NamedTuple):
    """A batch of jobs on one worker."""

    tokens_per_s: float
    cpu_ms_a_job: float


async def measure(running: Fleet, batch: int, tokens: int, chance: random.Random) -> Round:
    """`batch` jobs at once, from the first submission to the last end."""
    agent = psutil.Process(running.worker.process.pid)
    prompts = [token_ids(PROMPT, running.vocabulary, chance) for _ in range(batch)]
    sampling: dict[str, Any] = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
    async with AsyncClient(running.url) as client:

        async def finish(prompt: list[int]) -> None:
            trace = TraceContext(secrets.token_hex(16), secrets.token_hex(8), True)
            job = await client.submit(prompt, model=running.model, trace=str(trace), **sampling)
            await job.result()

        before, began = _cpu_s(agent), time.perf_counter()
        await asyncio.gather(*map(finish, prompts))
        seconds = time.perf_counter() - began
    await asyncio.sleep(1.0)  # its spans are sent every half a second
    return Round(batch * tokens / seconds, (_cpu_s(agent) - before) * 1e3 / batch)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def collector() -> Iterator[str]:
    """The address of one that runs as a process."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", COLLECTOR, str(port)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def run(asked: argparse.Namespace, folder: Path, with_spans: str) -> dict[str, Any]:
    """A row."""
    flags = ["--device", asked.device, "--max-running", str(asked.batch)]
    flags += ["--load-format", "dummy"] if asked.is_shape else []
    if asked.kv_memory is not None:
        flags += ["--kv-memory", str(asked.kv_memory)]
    chance = random.Random(1)
    with ExitStack() as stack:
        os.environ.pop(ENDPOINT, None)
        plain = stack.enter_context(fleet(folder, flags))
        await plain.ready()
        os.environ |= {ENDPOINT: with_spans, "OTEL_BSP_SCHEDULE_DELAY": "500"}
        traced = stack.enter_context(fleet(folder, flags))
        await traced.ready()
        rounds: dict[bool, list[Round]] = {False: [], True: []}
        for number in range(asked.rounds + 1):
            for is_traced in (False, True) if number % 2 else (True, False):
                found = await measure(traced if is_traced else plain, asked.batch, asked.tokens, chance)
                if number:  # the first one warms up
                    rounds[is_traced].append(found)
                    print(number, "with" if is_traced else "without", found, flush=True)
    fast, slow = (median([each.tokens_per_s for each in rounds[is_traced]]) for is_traced in (False, True))
    pairs = zip(rounds[True], rounds[False], strict=True)
    ratios = [one.tokens_per_s / other.tokens_per_s for one, other in pairs]
    cheap, dear = (fmean(each.cpu_ms_a_job for each in rounds[is_traced]) for is_traced in (False, True))
    return {
        "device": asked.device, "model": folder.name, "batch": asked.batch, "tokens": asked.tokens,
        "rounds": asked.rounds, "tokens_per_s": round(fast, 1), "tokens_per_s_traced": round(slow, 1),
        "median_of_ratios": round(median(ratios), 4), "cpu_ms_a_job": round(cheap, 3),
        "cpu_ms_a_job_traced": round(dear, 3), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def told(url: str, jobs: int = 2000, at_once: int = 100) -> dict[str, Any]:
    """A row: CPU time of the spans of a job by themselves, which other processes disturb least: of the thread that
    tells them, and of the process, with the thread that exports them."""
    os.environ[ENDPOINT] = url
    tracing = open_tracing("benchmark")
    assert tracing is not None
    traces = Traces(tracing.tell, model="m", worker_id="w", shows_content=False)
    context = TraceContext("1" * 32, "2" * 16, True)
    request = JobRequest(model="m", prompt=(1, 2, 3), sampling=SamplingParams(max_tokens=9))
    terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage())
    in_thread = in_all = 0.0
    for start in range(0, jobs, at_once):
        made = [
            Claim(Keys().new_job_id(), "t", 1, "acme", "normal", request, 1, None, 0, False, trace=context)
            for _ in range(at_once)
        ]
        active = [ActiveJob(claim) for claim in made]
        for job in active:
            job.computed_at = time.monotonic()
        thread, process = time.thread_time(), time.process_time()
        for job in active:
            traces.ended(job, terminal)
        told_s = time.thread_time() - thread
        tracing.flush()
        if start:  # the first ones warm up
            in_thread, in_all = in_thread + told_s, in_all + time.process_time() - process
    counted = jobs - at_once
    tracing.close()
    return {"spans_of_a_job": 4, "ms_in_the_loop": round(in_thread * 1e3 / counted, 4),
            "ms_in_all": round(in_all * 1e3 / counted, 4), "load": round(os.getloadavg()[0], 1)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--model", default="demo")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kv-memory", type=float, help="GiB of each worker: two share a GPU")
    parser.add_argument("--spans-alone", action="store_true", help="without workers")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, collector() as url:
        asked.is_shape = asked.model in SHAPES
        folder = write_shape(asked.model, Path(made)) if asked.is_shape else model_folder(asked.model)
        rows = [told(url)]
        print(rows[0], flush=True)
        if not asked.spans_alone:
            rows.append(asyncio.run(run(asked, folder, url)))
        write(report("traces", rows), asked.out)


if __name__ == "__main__":
    main()
