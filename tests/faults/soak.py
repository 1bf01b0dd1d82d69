"""Kills, pauses, restarts that lose the last second and a stranger's edits together, over real workers.

    python tests/faults/soak.py [--minutes 20] [--jobs N] [--workers 3] [--seed N] [--lossless | --failovers] [--states]

Counts jobs that were given up, that gave another answer than undisturbed, whose end was retracted after a reader had
seen it, that never ended, and that were lost or ended in another way, and streams that were cut before their end. Exit
code 1 if there is any. What a stranger has edited may end as damaged; it must end, and hold up no other.

Readers leave and come back with the position that they had reached, by another client. Of a job with one sequence none
may be sent back to the beginning. With `--lossless` servers are restarted and lose nothing, and no value is edited;
`--failovers` does so with a replica that takes over when it has everything. Then no reader at all may be sent back.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from killable_server import server_program
from queue_client import MODEL, known_queue
from server_kinds import kinds, started, take_over
from tiny_folders import write_hybrid
from waiting import until
from worker_process import WorkerProcess

from octavo import AsyncClient
from octavo.queue.connection import connect_sync
from octavo.queue.keys import Keys
from octavo.service.server import EmbeddedServer
from octavo.terms.errors import JobNotFound, OctavoError, ServerUnavailable
from octavo.terms.messages import JobStatus
from octavo.terms.models import Event, JobRequest, Result

LEASE_S = 3.0
IN_FLIGHT = 24
SPECIMENS = 40
FIELDS = ("mdl", "tn", "cls", "lane", "n", "ep", "bytes", "cost", "ret", "body", "st", "dl")
KINDS = ("given up", "wrong", "retracted", "stuck", "lost", "cut", "ended otherwise", "reset")
CALM_S = 600.0  # after the faults, before what has not ended is called stuck
FLAGS = {"model": "demo", "device": "cpu", "num_blocks": 2048, "max_running": 12, "threads": 1, "lease": LEASE_S}

Answer = list[tuple[tuple[int, ...], str, str | None]]


def specimen(number: int) -> JobRequest:
    """Greedy and seeded, alone and in twos, with stop strings, best_of and beams."""
    sampling: dict[str, Any] = {
        "max_tokens": 40 + 7 * (number % 20),
        "temperature": (0.0, 0.9)[number % 2],
        "seed": number,
        "stop": ["What", "\n\n"] if number % 4 == 0 else [],
    }
    if number % 10 in (1, 3, 6, 9):
        sampling["n"] = 2 + number % 3
    elif number % 10 == 5:
        sampling["best_of"] = 3
    elif number % 10 == 7:
        sampling |= {"beam_width": 3, "temperature": 1.0}
    prompt = f"KING RICHARD {number}:\nWhat say you, my lord of {'abcdefgh'[number % 8] * (number % 23)}"
    return JobRequest.model_validate({"model": MODEL, "prompt": prompt, "sampling": sampling})


def answer_of(result: Result) -> Answer:
    return [(s.token_ids, s.text, s.finish_reason) for s in result.sequences]


class Heard:
    """One reader's part of a stream. A reader that is sent back drops what it had from there."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, Event]] = []
        self.end: JobStatus | None = None

    def take(self, event: Event) -> None:
        if event.end is not None:
            self.end = event.end.status
        elif event.chunk is not None:
            start = event.offset - len(event.token_ids)
            self._rows = [row for row in self._rows if row[0] <= start]
            self._rows.append((event.offset, event))

    @property
    def answer(self) -> Answer:
        found: dict[int, Answer] = {}
        for _, event in self._rows:
            assert event.chunk is not None
            index, chunk = event.chunk.index, event.chunk
            found.setdefault(index, []).append((chunk.token_ids, "".join(chunk.texts), chunk.finish_reason))
        return [
            (tuple(t for ids, _, _ in rows for t in ids), "".join(text for _, text, _ in rows), rows[-1][2])
            for _, rows in sorted(found.items())
        ]


@dataclass
class Soak:
    """The service under test, and what was found."""

    server: EmbeddedServer
    data: Path
    clients: list[AsyncClient]
    start_worker: Callable[[], WorkerProcess]
    chance: random.Random
    jobs_left: float = math.inf
    is_lossless: bool = False
    fail_over: Callable[[], None] | None = None
    expected: dict[int, Answer] = field(default_factory=dict)
    workers: list[WorkerProcess] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    ends: dict[str, tuple[int, JobStatus]] = field(default_factory=dict)
    edited: set[str] = field(default_factory=set)
    open_jobs: set[str] = field(default_factory=set)
    stopping: bool = False
    _sizes: list[tuple[float, dict[Path, int]]] = field(default_factory=list)

    def note(self, kind: str, job_id: str, detail: object) -> None:
        self.found[kind] += 1
        print(f"{kind}: {job_id}: {detail}", flush=True)

    # Jobs

    async def learn(self) -> None:
        """The answers without faults."""
        jobs = [await self.clients[0].submit(specimen(number)) for number in range(SPECIMENS)]
        for number, job in enumerate(jobs):
            self.expected[number] = answer_of(await job.result())

    async def customer(self) -> None:
        """One job after the other, read by the client that submitted it or by another."""
        while not self.stopping and self.jobs_left > 0:
            self.jobs_left -= 1
            number, client = self.chance.randrange(SPECIMENS), self.chance.choice(self.clients)
            try:
                job = await client.submit(specimen(number), follow=self.chance.random() < 0.5)
            except OctavoError:
                await asyncio.sleep(0.2)
                continue
            self.open_jobs.add(job.id)
            await self._read(job.id, number)
            self.open_jobs.discard(job.id)

    async def _hear(self, job_id: str, number: int) -> Heard:
        """All of a stream, by readers that leave it in the middle and others that go on where they were."""
        heard, place = Heard(), "0"
        while heard.end is None:
            left = self.chance.choice((3, 10, 30, 1 << 30))
            try:
                async with aclosing(self.chance.choice(self.clients).events(job_id, place)) as events:
                    async for event in events:
                        if event.reset:
                            self._note_reset(job_id, number, place)
                            heard = Heard()
                        heard.take(event)
                        place, left = event.position, left - 1
                        if left == 0 or heard.end is not None:
                            break
            except ServerUnavailable:  # a reader that begins while servers change places waits for ten seconds
                await asyncio.sleep(0.5)
            self.found["resumed"] += heard.end is None
        return heard

    def _note_reset(self, job_id: str, number: int, place: str) -> None:
        if job_id in self.edited:
            return
        several = specimen(number).sampling.n > 1
        if several and not self.is_lossless:
            self.found["sent back after a loss"] += 1
        else:
            self.note("reset", job_id, f"at {place}, specimen {number} of {specimen(number).sampling.n} sequences")

    async def _read(self, job_id: str, number: int) -> None:
        reader = self.clients[0]
        try:
            heard = await self._hear(job_id, number)
        except OctavoError as error:
            if job_id not in self.edited:
                self.note("cut", job_id, error)
                self.ends[job_id] = number, JobStatus.COMPLETED  # it may go on, and be resumed
            return
        if job_id in self.edited or heard.end is None:
            self.found["edited"] += 1
            return
        self.ends[job_id] = number, heard.end
        if heard.end is not JobStatus.COMPLETED:
            info = await reader.info(job_id)
            kind = "given up" if info.error is not None and info.error.code == "dead_lettered" else "ended otherwise"
            self.note(kind, job_id, f"{heard.end}: {info.error}")
        elif heard.answer != self.expected[number]:
            self.note("wrong", job_id, f"heard of specimen {number}")
        else:
            self.found["right"] += 1

    async def look_back(self) -> None:
        """Every end that was seen still stands, with the same answer."""
        for job_id, (number, end) in self.ends.items():
            if job_id in self.edited:
                continue
            try:
                result = await self.clients[0].result(job_id, timeout=CALM_S)
            except (JobNotFound, TimeoutError) as error:
                self.note("lost", job_id, error)
                continue
            if result.status is not end:
                self.note("retracted", job_id, f"{end}, now {result.status}")
            elif end is JobStatus.COMPLETED and answer_of(result) != self.expected[number]:
                self.note("wrong", job_id, f"result of specimen {number}")

    # Faults

    async def trouble(self) -> None:
        kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.kill_engine, 3), (self.kill_worker, 2), (self.pause_worker, 3), (self.restart_server, 1),
        ]  # fmt: skip
        if self.fail_over is not None:
            kinds = [*kinds[:3], (self.take_over, 3)]
        elif self.is_lossless:
            kinds.append((self.restart_server, 2))
        else:
            kinds += [(self.lose_last_second, 2), (self.edit, 4)]
        while True:
            await asyncio.sleep(self.chance.uniform(1.0, 5.0))
            (act,) = self.chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
            self.faults[act.__name__] += 1
            await act()

    async def kill_engine(self) -> None:
        info = self.chance.choice(self.workers).info()
        if info is not None and info.stats.engine_pid:
            _signal(int(info.stats.engine_pid), signal.SIGKILL)

    async def kill_worker(self) -> None:
        place = self.chance.randrange(len(self.workers))
        _signal(self.workers[place].pid, signal.SIGKILL)
        self.workers[place].wait()
        self.workers[place] = self.start_worker()

    async def pause_worker(self) -> None:
        """Beyond its lease."""
        pid = self.chance.choice(self.workers).pid
        _signal(pid, signal.SIGSTOP)
        await asyncio.sleep(LEASE_S * self.chance.uniform(1.2, 2.0))
        _signal(pid, signal.SIGCONT)

    async def restart_server(self) -> None:
        self.server.restart()

    async def take_over(self) -> None:
        assert self.fail_over is not None
        await asyncio.to_thread(self.fail_over)

    async def lose_last_second(self) -> None:
        """As after a loss of power: its file ends where it ended a second ago."""
        self.server.kill()
        old = next((sizes for at, sizes in reversed(self._sizes) if time.monotonic() - at >= 1.0), {})
        for path, size in old.items():
            if path.exists() and path.stat().st_size > size:
                os.truncate(path, size)
        self._sizes.clear()
        self.server.start()

    async def watch_file(self) -> None:
        while True:
            files = self.data.glob("appendonlydir/*.incr.aof")
            self._sizes = [*self._sizes[-20:], (time.monotonic(), {path: path.stat().st_size for path in files})]
            await asyncio.sleep(0.1)

    async def edit(self) -> None:
        """Edits one job or the bell, as another program on the same server may."""
        keys = Keys()
        with redis.Redis.from_url(self.server.url) as connection:
            if self.chance.random() < 0.2:
                connection.delete(keys.bell(MODEL))
                connection.set(keys.bell(MODEL), "another program's", ex=1)
                return
            if not self.open_jobs:
                return
            job_id = self.chance.choice(sorted(self.open_jobs))
            self.edited.add(job_id)
            job, stream = keys.job(job_id), keys.stream(job_id)
            name = self.chance.choice(
                ["mdl", "tn", "cls", "lane", "n", "ep", "bytes", "cost", "ret", "body", "st", "dl"]
            )
            match self.chance.randrange(5):
                case 0:
                    connection.set(job, "another program's")
                case 1:
                    connection.delete(job)
                case 2:
                    connection.hset(job, name, "rubbish")
                case 3:
                    connection.hdel(job, name)
                case 4:
                    connection.set(stream, "another program's")


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


async def run(soak: Soak, minutes: float, workers: int) -> int:
    soak.workers = [soak.start_worker() for _ in range(workers)]
    print("learning the answers", flush=True)
    await soak.learn()
    print(f"{minutes:g} minutes of faults", flush=True)
    customers = [asyncio.create_task(soak.customer()) for _ in range(IN_FLIGHT)]
    faults = [asyncio.create_task(work()) for work in (soak.trouble, soak.watch_file)]
    served = asyncio.gather(*customers)
    done, _ = await asyncio.wait([served, *faults], timeout=60 * minutes, return_when=asyncio.FIRST_COMPLETED)
    soak.stopping = True
    for task in faults:
        task.cancel()
    await asyncio.gather(*faults, return_exceptions=True)
    for worker in soak.workers:
        _signal(worker.pid, signal.SIGCONT)
    for task in done:
        task.result()  # a fault of this script
    _, left = await asyncio.wait(customers, timeout=CALM_S)
    for job_id in sorted(soak.open_jobs):
        soak.note("stuck", job_id, "edited" if job_id in soak.edited else "not edited")
    for task in left:
        task.cancel()
    await soak.look_back()
    print("faults:", dict(soak.faults))
    found = soak.found
    print(f"{found['right']} right, {len(soak.edited)} edited, {found['resumed']} times resumed, "
          f"{found['sent back after a loss']} sent back after a loss:",
          ", ".join(f"{found[kind]} {kind}" for kind in KINDS))  # fmt: skip
    return int(any(found[kind] for kind in KINDS) or not found["right"])


async def main(options: argparse.Namespace, folder: Path, stack: ExitStack) -> int:
    data, numbers, fail_over = folder / "data", iter(range(1 << 20)), None
    if options.failovers:
        (kind,) = [kind for kind in kinds() if kind.startswith("sentinel-")][:1]
        servers = stack.enter_context(started(kind, folder))
        server, url, fail_over = servers.nodes[0], servers.url, lambda: take_over(servers)
    else:
        server = stack.enter_context(EmbeddedServer(data_dir=data, binary=server_program(
            folder, "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")))  # fmt: skip
        url = server.url

    flags = {**FLAGS, **(write_hybrid(folder / "hybrid", FLAGS["device"]) if options.states else {})}

    def start_worker() -> WorkerProcess:
        return stack.enter_context(WorkerProcess(url, folder / f"worker{next(numbers)}.log", **flags))

    with connect_sync(url) as connection:
        known_queue(connection)
        await until(connection.ping)
    async with AsyncClient(url) as first, AsyncClient(url) as second:
        soak = Soak(server, data, [first, second], start_worker, random.Random(options.seed), options.jobs,
                    options.lossless or options.failovers, fail_over)  # fmt: skip
        return await run(soak, options.minutes, options.workers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--jobs", type=float, default=math.inf, help="end after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lossless", action="store_true", help="nothing is lost and nothing edited")
    parser.add_argument("--failovers", action="store_true", help="a replica takes over, and nothing is lost")
    parser.add_argument("--states", action="store_true", help="a model with recurrent states, random weights")
    given = parser.parse_args()
    os.environ["OCTAVO_CHECK_INTEGRITY"] = "1"
    with tempfile.TemporaryDirectory(prefix="octavo-soak-") as folder, ExitStack() as stack:
        sys.exit(asyncio.run(main(given, Path(folder), stack)))
