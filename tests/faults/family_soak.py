"""Jobs on a tiny model of every family with states, windows or latent rows, while its workers are killed.

    python tests/faults/family_soak.py [--families qwen3_5,lfm2] [--kills 14] [--jobs 0] [--workers 3] [--kill-every 2]
    [--out benchmarks/results/family-faults.json]

Each family's answers are learnt first, then asked for again and again while workers and engines that run jobs are
killed: until so many kills have been, and so many jobs have ended. Blocks are so few that sequences are preempted. A
stream must have no gap and no repeat and say what it said undisturbed, and so must the stored result. Exit code 1 for
anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from oracles.zoo import OWN, save
from queue_client import known_queue
from soak import Answer, Heard, answer_of, specimen
from tiny_folders import SERVED, with_tokenizer
from worker_process import KNOWN_SPEEDS, WorkerProcess

from octavo import AsyncClient
from octavo.queue.connection import connect_sync
from octavo.service.server import EmbeddedServer
from octavo.terms.errors import OctavoError
from octavo.terms.messages import JobStatus
from octavo.terms.models import JobRequest
from octavo_worker.bench.report import report, write

PROMPTS = 20
IN_FLIGHT = 16
TIMES_AS_LONG = 2  # a job is to be running still when its worker is killed
ENDED_S = 1800.0  # until a job is called lost: on a busy machine workers take long to come back
IMPORTS = ("octavo_worker.model.library",)  # seconds of each start, where a config is read by transformers
FLAGS = {
    "engine": KNOWN_SPEEDS, "device": "cpu", "dtype": "bfloat16", "num_blocks": 257, "swap_memory": 0.01,
    "max_running": 12, "threads": 1, "lease": 3.0,
}  # fmt: skip
FAMILIES = (
    "qwen3_5", "granitemoehybrid-experts", "lfm2", "gemma3", "gemma4", "gpt_oss", "glm4_moe_lite",
    "nemotron_h-experts", "falcon_h1", "olmo_hybrid", "qwen3_next", "mamba2", "bamba", "lfm2_moe", "qwen3_5_moe",
    "gemma4-mixture", "gemma2", "exaone4", "olmo3", "cohere2", "deepseek_v2", "deepseek_v3", "minicpm3", "youtu",
)  # fmt: skip
FAULTS = ("wrong", "repeated", "lost")


def asked(number: int) -> JobRequest:
    request = specimen(number)
    longer = request.sampling.model_copy(update={"max_tokens": TIMES_AS_LONG * request.sampling.max_tokens})
    return request.model_copy(update={"sampling": longer})


def written(name: str, folder: Path) -> dict[str, object]:
    """A family's tiny member there, for the bundled tokenizer. Returns flags of its workers."""
    config = deepcopy(OWN[name])
    for key, value in SERVED.items():
        setattr(config, key, value)
    if hasattr(config, "vocab_size_per_layer_input"):
        config.vocab_size_per_layer_input = config.vocab_size
    save(name, folder, config)
    return with_tokenizer(folder)


@dataclass
class Family:
    """Workers of one model, its answers undisturbed, and what was found."""

    client: AsyncClient
    start_worker: Callable[[], WorkerProcess]
    chance: random.Random
    workers: list[WorkerProcess]
    kills_wanted: int
    jobs_wanted: int
    expected: dict[int, Answer] = field(default_factory=dict)
    found: Counter[str] = field(default_factory=Counter)

    @property
    def is_done(self) -> bool:
        return self.found["kills"] >= self.kills_wanted and self.found["jobs"] >= self.jobs_wanted

    def note(self, kind: str, job_id: str, detail: object) -> None:
        self.found[kind] += 1
        print(f"{kind}: {job_id}: {str(detail)[:1000]}", flush=True)

    async def learn(self) -> None:
        jobs = [await self.client.submit(asked(number)) for number in range(PROMPTS)]
        for number, job in enumerate(jobs):
            self.expected[number] = answer_of(await job.result(timeout=ENDED_S))

    async def customer(self) -> None:
        while not self.is_done:
            number = self.chance.randrange(PROMPTS)
            job = await self.client.submit(asked(number))
            try:
                async with asyncio.timeout(ENDED_S):
                    await self._check(job.id, number)
            except (OctavoError, TimeoutError) as error:
                self.note("lost", job.id, repr(error))

    async def _check(self, job_id: str, number: int) -> None:
        """Follows a job to its end, and compares stream and result with the answer undisturbed."""
        heard, place = Heard(), 0
        async for event in self.client.events(job_id):
            place += len(event.token_ids)
            if event.reset or (event.chunk is not None and event.offset != place):
                self.note("repeated", job_id, event)
            heard.take(event)
        info = await self.client.info(job_id)
        if heard.end is not JobStatus.COMPLETED:
            self.note("lost", job_id, info.error)
            return
        stored = answer_of(await self.client.result(job_id, timeout=ENDED_S))
        if not heard.answer == stored == self.expected[number]:
            self.note("wrong", job_id, f"specimen {number}: {heard.answer}, {stored}, {self.expected[number]}")
        self.found["jobs"] += 1
        self.found["taken_over"] += info.attempts > 1
        self.found["takeovers"] += info.attempts - 1

    async def kill(self, every_s: float) -> None:
        """One worker after the other that has said something, itself or its engine alone. The next one starts at
        once."""
        while self.found["kills"] < self.kills_wanted:
            await asyncio.sleep(every_s)
            infos = await asyncio.to_thread(lambda: [worker.info() for worker in self.workers])
            busy = [at for at, info in enumerate(infos) if info and info.stats.running and info.stats.generated_tokens]
            if not busy:
                continue
            place = self.chance.choice(busy)
            info = infos[place]
            assert info is not None
            with suppress(ProcessLookupError):
                if self.chance.random() < 0.5:
                    os.kill(info.stats.engine_pid, signal.SIGKILL)
                else:
                    self.workers[place].process.kill()
                    await asyncio.to_thread(self.workers[place].wait)
                    self.workers[place] = self.start_worker()
                self.found["kills"] += 1


async def soak(name: str, options: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    """A row of what became of one family's jobs."""
    flags, numbers = {**FLAGS, **written(name, folder / "model")}, iter(range(1 << 20))
    server = stack.enter_context(EmbeddedServer())
    with connect_sync(server.url) as connection:
        known_queue(connection)

    def start_worker() -> WorkerProcess:
        return stack.enter_context(
            WorkerProcess(server.url, folder / f"worker{next(numbers)}.log", imports=IMPORTS, **flags)
        )

    workers = [start_worker() for _ in range(options.workers)]
    for worker in workers:
        await asyncio.to_thread(worker.wait_ready)
    async with AsyncClient(server.url) as client:
        chance = random.Random(options.seed)
        family = Family(client, start_worker, chance, workers, options.kills, options.jobs)
        await family.learn()
        began, killing = time.monotonic(), asyncio.create_task(family.kill(options.kill_every))
        await asyncio.gather(*(family.customer() for _ in range(IN_FLIGHT)))
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    seconds = round(time.monotonic() - began, 1)
    counts = ("jobs", "kills", "taken_over", "takeovers", *FAULTS)
    return {"family": name, **{kind: family.found[kind] for kind in counts}, "seconds": seconds}


async def main(options: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for name in options.families.split(","):
        with tempfile.TemporaryDirectory(prefix="octavo-family-") as folder, ExitStack() as stack:
            rows.append(await soak(name, options, Path(folder), stack))
            print(rows[-1], flush=True)
        document = report("family-faults", rows, workers=options.workers, kills=sum(row["kills"] for row in rows))
        if options.out is not None:
            write(document, options.out)
    return int(any(row[fault] for row in rows for fault in FAULTS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--kills", type=int, default=14)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kill-every", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ["OCTAVO_CHECK_INTEGRITY"] = "1"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(asyncio.run(main(given)))
