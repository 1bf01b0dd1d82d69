"""A worker process for fault tests: deterministic tokens, and no caution beyond what the protocol enforces.

It never fences itself, so a stopped and resumed process really writes as a zombie. Every write that the server
accepted goes to a log file. `--unfenced` runs it on scripts that do not check the claim token: a mutant that the
history checker has to notice.

    python history_worker.py URL WORKER_ID LOG [--unfenced]
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any, TypeVar

import fake_worker as fake
import redis
from sync_streams import read_stream_sync

import octavo.queue.calls
from octavo.queue import wire
from octavo.queue.calls import Call, run_sync
from octavo.queue.connection import connect_sync
from octavo.queue.protocol import Append, AppendReply, Claim
from octavo.queue.scripts import Script, script
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.models import Event
from octavo.terms.workers import WorkerInfo

LEASE_MS = 700
CAPACITY = 16
STEP_S = 0.06
POISON = "poison"
"""The prompt of a job that kills its engine."""
PROMPT_TOKENS = 3

T = TypeVar("T")


@dataclass
class Running:
    claim: Claim
    chunks: list[Chunk]
    offset: int
    status: JobStatus | None = None


@dataclass
class Worker:
    redis: redis.Redis
    id: str
    log: Any
    jobs: dict[str, Running] = field(default_factory=dict)
    draining: bool = False

    def ask(self, call: Call[T]) -> T:
        """The same call again until it is answered: every script can be repeated."""
        while True:
            try:
                return run_sync(self.redis, call)
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                time.sleep(0.05)

    def stream(self, job_id: str) -> list[Event]:
        while True:
            try:
                return read_stream_sync(self.redis, job_id)
            except (redis.ConnectionError, redis.TimeoutError, OSError):  # one that loads its data, too
                time.sleep(0.05)

    def main(self) -> None:
        beat = 0.0
        while True:
            if time.monotonic() >= beat:
                self.heartbeat()
                self.ask(fake.CELL.reap())
                beat = time.monotonic() + LEASE_MS / 3000
            self.claim()
            for job in list(self.jobs.values()):
                if job.status is not None:
                    self.finish(job)
            self.step()
            time.sleep(0.005 if any(job.claim.solo for job in self.jobs.values()) else STEP_S)

    def heartbeat(self) -> None:
        info = wire.encode_worker(WorkerInfo(id=self.id, model=fake.MODEL, host="here", pid=1, started_at=1.0))
        owned = [(job.claim.job_id, job.claim.token) for job in self.jobs.values()]
        reply = self.ask(fake.CELL.heartbeat(self.id, owned, lease_ms=LEASE_MS, info=info))
        for job_id in reply.lost:
            del self.jobs[job_id]
        for job_id, reason in reply.stop:
            self.jobs[job_id].status = JobStatus(reason)

    def claim(self) -> None:
        if any(job.claim.solo for job in self.jobs.values()) or (self.draining and self.jobs):
            return
        room = CAPACITY - len(self.jobs)
        call = fake.CELL.claim(
            fake.MODEL, self.id, max_jobs=room, max_tokens=1 << 30, lease_ms=LEASE_MS, idle=not self.jobs
        )
        claims = self.ask(call)
        for claim in claims.jobs:
            chunks = [event.chunk for event in self.stream(claim.job_id) if event.chunk]
            self.jobs[claim.job_id] = Running(claim, chunks, claim.offset)
        self.draining = claims.solo_waiting_s > 0.5
        if any(job.claim.request.prompt == POISON for job in self.jobs.values()):
            self.crash()

    def crash(self) -> None:
        """The engine dies of what it computes."""
        owned = [(job.claim.job_id, job.claim.token) for job in self.jobs.values()]
        self.ask(fake.CELL.release(owned, why="crashed"))
        self.jobs.clear()

    def step(self) -> None:
        items = []
        for job in self.jobs.values():
            total = job.claim.request.sampling.max_tokens or 0
            if job.offset >= total:
                job.status = job.status or JobStatus.COMPLETED
                continue
            size = min(random.randint(1, 3), total - job.offset)
            tokens = [fake.token_of(job.claim.request, job.claim.seed, job.offset + i) for i in range(size)]
            chunk = fake.chunk_of(tokens, last=job.offset + size == total)
            items.append(Append(job.claim.job_id, job.claim.token, job.offset, chunk))
        if items:
            for item, reply in zip(items, self.ask(fake.CELL.append(items)), strict=True):
                self.note(item, reply)

    def note(self, item: Append, reply: AppendReply) -> None:
        job = self.jobs[item.job_id]
        if reply.state == "fenced":
            del self.jobs[item.job_id]
            return
        if reply.state == "rewind":  # only after lost writes, or in the mutant: another worker got ahead
            job.chunks = [event.chunk for event in self.stream(item.job_id) if event.chunk]
            job.offset = reply.offset
            return
        row = [item.job_id, job.claim.attempt, item.start, len(item.chunk.token_ids)]
        self.log.write(json.dumps(row) + "\n")
        job.chunks.append(item.chunk)
        job.offset = item.start + len(item.chunk.token_ids)
        if reply.reason:
            job.status = JobStatus(reply.reason)

    def finish(self, job: Running) -> None:
        assert job.status is not None
        terminal = Terminal(status=job.status, usage=Usage(prompt_tokens=PROMPT_TOKENS, completion_tokens=job.offset))
        result = wire.encode_result(terminal, job.chunks)
        reply = self.ask(fake.CELL.finish(job.claim.job_id, job.claim.token, terminal, result))
        if reply.state == "rewind":
            job.offset, job.status = reply.offset, None
        else:
            del self.jobs[job.claim.job_id]


def unfenced(name: str) -> Script:
    """The script without the comparison of claim tokens."""
    source = script(name).source
    for fence, hole in (
        ("job[1] ~= 'running' or job[2] ~= token", "job[1] ~= 'running'"),
        ("status ~= 'running' or token ~= ARGV[i + 1]", "status ~= 'running'"),
        ("if job.tok ~= token then", "if false then"),
    ):
        source = source.replace(fence, hole)
    assert name not in ("append", "finish", "heartbeat") or source != script(name).source, "the mutant is no mutant"
    return Script(source, "0" * 40)  # an unknown hash: the source itself is sent every time


def main() -> None:
    url, worker_id, log, *options = sys.argv[1:]
    if "--unfenced" in options:
        octavo.queue.calls.script = unfenced  # type: ignore[attr-defined]
    with connect_sync(url) as connection, open(log, "a", buffering=1) as output:
        Worker(connection, worker_id, output).main()


if __name__ == "__main__":
    main()
