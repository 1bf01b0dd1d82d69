"""A server, a worker and a clerk as processes, without a gateway: what a benchmark of batches on a real model needs."""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from octavo import AsyncClient
from octavo.client.batches import BatchClient
from octavo.queue.batches.calls import NewBatch, NewFile
from octavo.queue.batches.keys import BATCH, FILE, new_id
from octavo.service.clerk.order import RUN_LINES
from octavo.service.server import EmbeddedServer
from octavo.service.storage import open_storage
from octavo.service.storage.interface import in_pieces
from octavo.service.storage.places import file_name
from octavo.terms.batches import BatchInfo, BatchStatus
from octavo.terms.stats import WorkerStats
from octavo_worker.bench.service import Child
from octavo_worker.bench.workloads import Work

URL = "/v1/completions"
POLL_S = 0.05
START_S = 300.0


@dataclass
class Fleet:
    """A server and a worker that run, and the folder of their files."""

    url: str
    model: str
    folder: Path
    worker: Child
    vocabulary: int = 30_000

    async def busy(self, jobs: int) -> None:
        """Once the worker has so many jobs."""
        async with AsyncClient(self.url) as client:
            while sum(worker.stats.jobs for worker in await client.workers()) < jobs:
                self.worker.check()
                await asyncio.sleep(POLL_S)

    async def stats(self) -> WorkerStats:
        async with AsyncClient(self.url) as client:
            (worker,) = await client.workers()
            return worker.stats

    async def ready(self) -> None:
        """Once the worker says that it is there."""
        end = time.monotonic() + START_S
        async with AsyncClient(self.url) as client:
            while not await client.workers() or not await client.models():
                self.worker.check()
                assert time.monotonic() < end, "the worker does not come"
                await asyncio.sleep(POLL_S)
            self.vocabulary = min(card.vocab_size for card in await client.models())

    @contextmanager
    def clerk(self, run_lines: int = RUN_LINES) -> Iterator[None]:
        ready = self.folder / "clerk-is-ready"
        program = str(Path(__file__).with_name("batch_clerk.py").resolve())
        command = [program, self.url, str(self.folder / "files"), str(run_lines), str(ready)]
        child = Child("clerk", command, dict(os.environ), self.folder)
        try:
            while not ready.exists():
                child.check()
                time.sleep(POLL_S)
            ready.unlink()
            yield
            child.check()
        finally:
            child.stop()

    async def begin(self, work: Iterable[Work]) -> str:
        """The id of a batch with these lines."""
        data = b"".join(self._lines(work))
        async with BatchClient(self.url) as client:
            file_id, batch_id = new_id(FILE), new_id(BATCH)
            await open_storage(str(self.folder / "files")).put(file_name(file_id), in_pieces(data))
            await client.note_file(NewFile(file_id, "acme", "in", "batch", len(data), "00"), cap=1 << 40)
            await client.create(NewBatch(batch_id, "acme", URL, file_id, "24h", 86_400))
        return batch_id

    def _lines(self, work: Iterable[Work]) -> Iterator[bytes]:
        for number, one in enumerate(work):
            body = {"model": self.model, "prompt": one.prompt, "max_tokens": one.max_tokens, "ignore_eos": True}
            body["temperature"] = 0
            line = {"custom_id": f"{number}", "method": "POST", "url": URL, "body": body}
            yield json.dumps(line).encode() + b"\n"

    async def executed(self, batch_id: str) -> float:
        """The time at which the last of its jobs ended, in seconds since the epoch."""
        async with BatchClient(self.url) as client:
            while True:
                info = await client.batch(batch_id)
                assert info is not None
                is_submitted = info.total and info.cursor == info.total
                if is_submitted and not await client.redis.zcard(client.keys.open_jobs(batch_id)):
                    return time.time()
                self.worker.check()
                await asyncio.sleep(POLL_S)

    async def end(self, batch_id: str, *, cancel: bool = False) -> BatchInfo:
        """The batch, once it has ended."""
        async with BatchClient(self.url) as client:
            if cancel:
                await client.cancel(batch_id, tenant="acme")
            while True:
                found = await client.batch(batch_id)
                assert found is not None
                if found.status.is_terminal:
                    return found
                self.worker.check()
                await asyncio.sleep(POLL_S)


@contextmanager
def fleet(model: Path, flags: list[str]) -> Iterator[Fleet]:
    """All but a clerk. Ends it all."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(EmbeddedServer(data_dir=folder / "data"))
        environment = os.environ | {"REDIS_URL": server.url, "OCTAVO_LOG_LEVEL": "warning"}
        worker = Child("worker", ["-P", "-m", "octavo_worker", "--model", str(model), *flags], environment, folder)
        stack.callback(worker.stop)
        yield Fleet(server.url, model.name, folder, worker)


def token_ids(length: int, vocabulary: int, chance: random.Random) -> list[int]:
    return [chance.randrange(10, min(vocabulary, 30_000)) for _ in range(length)]


def prompts_of(count: int, each: int, prefix: int, own: int, tokens: int, *, vocabulary: int, seed: int) -> list[Work]:
    """Lines of some prompts that begin alike, shuffled."""
    chance = random.Random(seed)

    def some(length: int) -> list[int]:
        return token_ids(length, vocabulary, chance)

    work = [
        Work(beginning + some(own), tokens) for beginning in (some(prefix) for _ in range(count)) for _ in range(each)
    ]
    chance.shuffle(work)
    return work


def reached(info: BatchInfo, status: BatchStatus) -> float:
    assert info.completed == info.total, info
    return info.reached[status]
