"""A batch of jobs through the queue: several replicas of a worker, each on a GPU of its own, beside one.

usage: python benchmarks/replicas.py [--replicas 1,2] [--model llama-8b] [--jobs 2000] [--prompt 256] [--output 256]
           [--tensor-parallel 1] [--device cuda|cpu] [--kv-memory GIB] [--rounds 1] [--resume] [--out FILE.json]

`octavo worker --replicas N` on a real server, for each N in turn. `--tensor-parallel` ranks share each worker's model.
A batch of short answers comes first and is not counted. Then all jobs are submitted at once, with random prompts, and
their tokens go into streams that have no readers. `jobs_per_s` counts from the first submission to the last end, by the
server's clock; `ratio` is its median divided by that of the smallest N, `by_worker` how many jobs each worker ended,
`server_cores` how busy the server was, which runs its commands on one core.
`--model` is a shape with random weights, a folder or `demo`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from peers.workers import ended, queue_place, requests, submitted

from octavo import AsyncClient
from octavo.terms.messages import JobStatus
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.contract.files import model_folder

WARM_OUTPUT = 8
MAX_RUNNING = 256
SETTINGS = ("model", "jobs", "prompt", "output", "device", "tensor_parallel", "max_running", "kv_memory", "threads")


class Runs:
    """Runs by number of replicas, in a file that is written whenever a run is added."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._path: Path | None = options.out
        self._settings = {name: getattr(options, name) for name in SETTINGS}
        self._runs: dict[str, list[dict[str, Any]]] = {}
        if options.resume and self._path is not None and self._path.exists():
            known = json.loads(self._path.read_text())
            if known["settings"] != self._settings:
                raise SystemExit(f"{self._path} has runs with {known['settings']}: name another --out.")
            self._runs = known["runs"]

    def of(self, replicas: int) -> list[dict[str, Any]]:
        return self._runs.setdefault(str(replicas), [])

    def add(self, replicas: int, run: dict[str, Any]) -> None:
        self.of(replicas).append(run)
        if self._path is not None:
            write(report("replicas", self.rows(), settings=self._settings, runs=self._runs), self._path)

    def rows(self) -> list[dict[str, Any]]:
        """One for each number of replicas, the smallest first."""
        rows: list[dict[str, Any]] = []
        for replicas, runs in sorted((int(number), runs) for number, runs in self._runs.items() if runs):
            speeds = [self._settings["jobs"] / run["seconds"] for run in runs]
            middle = statistics.median(speeds)
            rows.append({
                "replicas": replicas,
                "jobs_per_s": round(middle, 3),
                "jobs_per_s_min_max": [round(min(speeds), 3), round(max(speeds), 3)],
                "output_tokens_per_s": round(middle * self._settings["output"], 1),
            })  # fmt: skip
            rows[-1]["ratio"] = round(middle / rows[0]["jobs_per_s"], 3)
        return rows


async def batch(client: AsyncClient, count: int, prompt: int, output: int, *, seed: int) -> dict[str, Any]:
    """Seconds of a batch, and how many of its jobs each worker had."""
    asked = await requests(client, count, prompt, output, seed=seed)
    infos = await ended(client, await submitted(client, asked, f"batch{seed}"))
    if failed := [info for info in infos if info.status is not JobStatus.COMPLETED]:
        raise SystemExit(f"{len(failed)} jobs did not complete: {failed[0].error}")
    assert all(info.tokens == output for info in infos)
    seconds = max(info.finished_at or 0.0 for info in infos) - min(info.created_at for info in infos)
    return {"seconds": round(seconds, 4), "by_worker": sorted(Counter(info.worker for info in infos).values())}


async def measure(replicas: int, model: Path, options: argparse.Namespace, runs: Runs) -> None:
    """The rounds that are missing of a number of replicas."""
    names = ("device", "tensor_parallel", "max_running", "kv_memory", "threads")
    flags = {name: getattr(options, name) for name in names}
    flags |= {"model": model, "replicas": replicas, "max_model_len": options.prompt + options.output}
    flags |= {"load_format": "dummy" if model.name in SHAPES else "auto"}
    with queue_place() as place:
        place.start("worker", flags)
        async with AsyncClient(place.url) as client:
            await place.serving(client, replicas)
            filling = min(options.jobs, replicas * options.max_running)
            await batch(client, filling, options.prompt, min(WARM_OUTPUT, options.output), seed=0)
            while len(done := runs.of(replicas)) < options.rounds:
                spent = place.server_seconds()
                run = await batch(client, options.jobs, options.prompt, options.output, seed=1 + len(done))
                run["server_cores"] = round((place.server_seconds() - spent) / run["seconds"], 3)
                runs.add(replicas, run)
                print(json.dumps({"replicas": replicas} | run), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", default="1,2", help="numbers of workers, each measured by itself")
    parser.add_argument("--model", default="llama-8b")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--output", type=int, default=256, help="tokens")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks of each worker")
    parser.add_argument("--max-running", type=int, default=MAX_RUNNING)
    parser.add_argument("--kv-memory", type=float, help="GiB of each worker; what is free by default")
    parser.add_argument("--threads", type=int, help="of each rank on a CPU")
    parser.add_argument("--resume", action="store_true", help="keep what --out holds and run the rest")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse()
    runs = Runs(options)
    with tempfile.TemporaryDirectory() as folder:
        known = options.model in SHAPES
        model = write_shape(options.model, Path(folder)) if known else model_folder(options.model)
        for replicas in map(int, options.replicas.split(",")):
            if len(runs.of(replicas)) < options.rounds:
                asyncio.run(measure(replicas, model, options, runs))
    for row in runs.rows():
        print(json.dumps(row))


if __name__ == "__main__":
    main()
