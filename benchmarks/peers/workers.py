"""Workers on a server of their own, and jobs for them: what benchmarks of the queue share."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from octavo import AsyncClient
from octavo.service.server import EmbeddedServer
from octavo.terms.models import JobInfo, JobRequest
from octavo.terms.sampling import SamplingParams
from octavo.terms.workers import WorkerInfo
from octavo_worker.bench.service import START_TIMEOUT_S, Child, ServiceFailed

POLL_S = 0.05


class Place:
    """A server, and a folder for the logs of what is started beside it."""

    def __init__(self, server: EmbeddedServer, folder: Path, stack: ExitStack) -> None:
        self.url = server.url
        self._server = psutil.Process(server.pid)
        self._folder, self._stack = folder, stack
        self._children: list[Child] = []

    def server_seconds(self) -> float:
        """CPU time of the server so far. It has one core for all commands."""
        times = self._server.cpu_times()
        return float(times.user + times.system)

    def start(self, name: str, flags: Mapping[str, Any], gpus: str | None = None) -> Child:
        """`octavo worker` with these flags, None for those that are not given, on these GPUs of CUDA_VISIBLE_DEVICES
        or on all. It ends with the place."""
        arguments = [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items() if value is not None]
        environment = os.environ | {"REDIS_URL": self.url, "OCTAVO_LOG_LEVEL": "warning"}
        environment |= {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
        child = Child(name, ["-m", "octavo_worker", *arguments], environment, self._folder)
        self._children.append(child)
        self._stack.callback(child.stop)
        return child

    async def serving(self, client: AsyncClient, count: int) -> list[WorkerInfo]:
        """Once there are so many workers that serve. Raises `ServiceFailed` with the last lines of one that ended."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(found := await client.workers()) < count:
            for child in self._children:
                child.check()
            if time.monotonic() > deadline:
                raise ServiceFailed(f"{len(found)} of {count} workers serve after {START_TIMEOUT_S:.0f} s")
            await asyncio.sleep(POLL_S)
        return found


@contextmanager
def queue_place() -> Iterator[Place]:
    """A server that keeps what it is told in files, as one in use does."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(EmbeddedServer(data_dir=folder))
        yield Place(server, folder, stack)


async def requests(client: AsyncClient, count: int, prompt: int, output: int, *, seed: int) -> list[JobRequest]:
    """Jobs for the model that is served: random prompts of so many tokens, answers of exactly so many."""
    (card,) = await client.models()
    numbers = random.Random(seed)
    sampling = SamplingParams(max_tokens=output, temperature=1.0, ignore_eos=True)
    prompts = [tuple(numbers.randrange(card.vocab_size) for _ in range(prompt)) for _ in range(count)]
    return [JobRequest(model=card.name, prompt=tokens, sampling=sampling) for tokens in prompts]


async def submitted(client: AsyncClient, asked: Sequence[JobRequest], tenant: str) -> list[str]:
    """The ids of jobs that were all accepted."""
    answers = await client.submit_many(asked, tenant=tenant)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [answer.id for answer in answers]


async def ended(client: AsyncClient, ids: Sequence[str]) -> list[JobInfo]:
    """Where all of the jobs stand once each has ended. Nothing is streamed, so the client costs the service little."""
    infos = []
    for job in ids:
        info = await client.info(job)
        while not info.status.is_terminal:
            await asyncio.sleep(POLL_S)
            info = await client.info(job)
        infos.append(info)
    return infos
