"""Words for a command that waits: what its job waits for, once nothing has come of it for a while."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.markup import escape

from octavo.cli.console import counted
from octavo.client.asynchronous import AsyncClient
from octavo.client.handles import AsyncJob
from octavo.service.console import err
from octavo.terms.errors import OctavoError
from octavo.terms.messages import JobStatus
from octavo.terms.models import JobInfo

SILENT_S = 2.0


class Waiting:
    """A watch over one job while its command waits. It tells on stderr what the job waits for after some seconds
    without a word of it, and again when that is something else."""

    def __init__(self, client: AsyncClient, job: AsyncJob) -> None:
        self._client = client
        self._job = job
        self._heard = asyncio.Event()
        self._told = ""
        self._lead = ""  # ends the line of an answer's text on a terminal
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()

    def heard(self) -> None:
        """Something has come of the job, and is shown."""
        self._lead = "\n" if err.is_terminal else ""
        self._heard.set()

    async def _watch(self) -> None:
        with suppress(OctavoError):  # the command itself meets it, and says it
            while True:
                try:
                    async with asyncio.timeout(SILENT_S):
                        await self._heard.wait()
                    self._heard.clear()
                    self._told = ""
                except TimeoutError:
                    await self._tell()

    async def _tell(self) -> None:
        kind, words = await self._reason()
        if self._heard.is_set():
            return
        if words and kind != self._told:
            err.print(f"{self._lead}[dim]waiting: {escape(words)}[/]")
        self._told = kind

    async def _reason(self) -> tuple[str, str]:
        """Kind of thing that a job waits for, and the words for it. Numbers that change are no other kind."""
        info = await self._job.info()
        workers = [worker.id for worker in await self._client.workers() if worker.model == info.model]
        if info.status.is_terminal:
            return "", ""
        if not workers:
            return "no worker", await self._without_worker(info)
        if info.status is JobStatus.QUEUED:
            waiting = (await self._client.queue_depths()).get(info.model, 0)
            return "queue", f"{counted(waiting, 'job')} in the queue of {info.model}, {counted(len(workers), 'worker')}"
        if info.worker not in workers:
            return "takeover", f"the worker that had the job is gone, and {counted(len(workers), 'other')} may go on"
        if info.tokens == 0 and info.progress is None:
            return "first token", "a worker has the job, and no token yet"
        return "", ""

    async def _without_worker(self, info: JobInfo) -> str:
        waiting = (await self._client.queue_depths()).get(info.model, 0)
        return (
            f"no worker of the model {info.model} is alive, {counted(waiting, 'job')} in its queue; "
            "the job is kept: start one with `octavo worker`"
        )
