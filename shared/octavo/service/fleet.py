"""The fleet over time: live workers, what each did since the last reading, and what waits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from octavo.client.asynchronous import AsyncClient
from octavo.terms.errors import WorkerNotFound
from octavo.terms.fleet import FleetStats, LaneJob
from octavo.terms.messages import JobStatus
from octavo.terms.workers import WorkerInfo, WorkerMemory


async def live_workers(redis_url: str | None) -> list[WorkerInfo]:
    """Workers with a live heartbeat. Raises `ServerUnavailable`."""
    async with AsyncClient(redis_url) as client:
        return await client.workers()


@dataclass(frozen=True)
class WorkerLoad:
    """One worker over the last interval."""

    id: str
    model: str
    host: str
    pid: int
    running: int
    waiting: int
    kv_used: float  # share of the KV blocks that sequences hold, 0 to 1
    kv_cached: float  # share that only the prefix cache holds
    kv_dtype: str
    digest: str  # of all that decides its answers
    numerics: str  # what decides how it rounds
    blocks: dict[str, int]  # free + used + cached + quarantined are all; shared are among the used, host in CPU memory
    preemptions: int
    preemption_reasons: dict[str, int]  # which way each went, and why
    swapped: int  # sequences whose memory is on the host now
    tokens_per_s: float
    drafted_tokens: int  # guessed and verified since the engine's start
    accepted_tokens: int  # of those


@dataclass(frozen=True)
class Snapshot:
    queued: dict[str, int]
    workers: list[WorkerLoad]
    memory: list[WorkerMemory]  # of the workers whose memory was asked for
    stats: FleetStats

    @property
    def tokens_per_s(self) -> float:
        return sum(worker.tokens_per_s for worker in self.workers)

    def jobs(self) -> list[LaneJob]:
        """Jobs of all lanes: those that run, then those that wait longest."""
        jobs = [job for lane in self.stats.lanes for job in lane.jobs]
        return sorted(jobs, key=lambda job: (job.status is not JobStatus.RUNNING, job.created_at))


class Reader:
    """One reading after the other; rates are those since the one before. Only workers whose id begins with `prefix`,
    with their memory where `memory` is set."""

    def __init__(self, client: AsyncClient, prefix: str, *, memory: bool) -> None:
        self._client = client
        self._prefix = prefix
        self.memory = memory
        self._stats = client.stats_reader()
        self._made: dict[str, int] = {}
        self._since = time.monotonic()

    async def read(self) -> Snapshot:
        queued = await self._client.queue_depths()
        now, found = time.monotonic(), await self._client.workers()
        workers = [worker for worker in found if worker.id.startswith(self._prefix)]
        loads = [_load(worker, self._made.get(worker.id), now - self._since) for worker in workers]
        self._made, self._since = {worker.id: worker.stats.generated_tokens for worker in workers}, now
        return Snapshot(queued, loads, await self._ask(workers) if self.memory else [], await self._stats.read())

    async def _ask(self, workers: list[WorkerInfo]) -> list[WorkerMemory]:
        questions = (self._client.worker_memory(worker.id) for worker in workers)
        answers = await asyncio.gather(*questions, return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        for failure in failures:
            if not isinstance(failure, WorkerNotFound):  # that one loads its model, or has just gone
                raise failure
        return [answer for answer in answers if isinstance(answer, WorkerMemory)]


def _load(worker: WorkerInfo, made_before: int | None, seconds: float) -> WorkerLoad:
    """`made_before`: tokens at the reading before; None if that did not have the worker."""
    stats = worker.stats
    blocks = max(1, stats.used_blocks + stats.cached_blocks + stats.free_blocks)
    made = 0 if made_before is None else max(0, stats.generated_tokens - made_before)
    return WorkerLoad(
        id=worker.id,
        model=worker.model,
        host=worker.host,
        pid=worker.pid,
        running=stats.running,
        waiting=stats.waiting,
        kv_used=round(stats.used_blocks / blocks, 4),
        kv_cached=round(stats.cached_blocks / blocks, 4),
        kv_dtype=stats.kv_dtype,
        digest=worker.digest,
        numerics=worker.numerics,
        blocks=stats.blocks(),
        preemptions=stats.preemptions,
        preemption_reasons=stats.reasons(),
        swapped=stats.swapped,
        tokens_per_s=round(made / max(seconds, 1e-3), 1),
        drafted_tokens=stats.drafted_tokens,
        accepted_tokens=stats.accepted_tokens,
    )
