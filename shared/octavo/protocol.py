"""Every state change of a job as one script call (INTERFACE: to be implemented, signatures stay).

A `Call` is inert data: which script, which arguments, how to read the reply. Synchronous and asynchronous code
share all of it and differ only in who awaits: `await run(redis, call)` or `run_sync(redis, call)`; several calls
go out in one round trip with `run_many`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from octavo.models import Chunk, JobError, JobRequest, JobStatus, Priority, Terminal

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    script: str  # file name in lua/, without suffix
    keys: tuple[str, ...]
    args: tuple[bytes | str | int | float, ...]
    parse: Callable[[Any], T]


@dataclass(frozen=True)
class Limits:
    """Caps checked inside enqueue. Over one: `QueueFull`."""

    queued_jobs: int = 100_000
    queued_jobs_per_tenant: int = 20_000
    queued_bytes: int = 1 << 30


@dataclass(frozen=True)
class Retention:
    """Seconds that things live after a job ended."""

    stream_s: int = 3600
    result_s: int = 86_400
    idempotency_s: int = 86_400


@dataclass(frozen=True)
class Enqueued:
    job_id: str
    created: bool  # False: the idempotency key named a job that exists


@dataclass(frozen=True)
class Claim:
    """A job handed to a worker. `token` fences every later write; `chunks` is what earlier owners published."""

    job_id: str
    token: str
    attempt: int
    tenant: str
    priority: Priority
    request: JobRequest
    seed: int
    deadline: float | None  # seconds since the epoch, by the server's clock
    offset: int  # tokens already in the stream; read them with `read_stream` before continuing
    solo: bool  # a suspect after repeated crashes: must run alone


@dataclass(frozen=True)
class Claims:
    jobs: tuple[Claim, ...]
    server_time: float
    solo_waiting_s: float  # age of the oldest suspect that waits for an idle worker, 0 if none


@dataclass(frozen=True)
class Append:
    """`len(chunk.token_ids)` tokens that start at offset `start`."""

    job_id: str
    token: str
    start: int
    chunk: Chunk


@dataclass(frozen=True)
class AppendReply:
    """`state`: ok, dup (already stored), rewind (the server lost tokens: resend from `offset`), fenced (another
    owner or terminal: drop it), cancel (stored, and the job should stop: `reason` is cancelled or expired)."""

    state: str
    offset: int
    reason: str | None = None


@dataclass(frozen=True)
class HeartbeatReply:
    lost: tuple[str, ...]
    stop: tuple[tuple[str, str], ...]  # (job id, cancelled | expired)


class Cell:
    """All calls on one cell."""

    def enqueue(
        self, job_id: str, request: JobRequest, *, seed: int, tenant: str, idempotency_key: str | None,
        limits: Limits, retention: Retention,
    ) -> Call[Enqueued]: ...

    def claim(
        self, model: str, worker_id: str, *, max_jobs: int, max_tokens: int, lease_ms: int, idle: bool
    ) -> Call[Claims]: ...

    def append(self, items: Sequence[Append]) -> Call[list[AppendReply]]: ...

    def finish(
        self, job_id: str, token: str, terminal: Terminal, result: bytes, *, retention: Retention
    ) -> Call[bool]: ...

    def heartbeat(self, worker_id: str, jobs: Sequence[tuple[str, str]], *, lease_ms: int, info: bytes) -> Call[HeartbeatReply]: ...

    def release(self, jobs: Sequence[tuple[str, str]], *, crashed: bool) -> Call[int]: ...

    def reap(self) -> Call[int]: ...

    def cancel(self, job_id: str) -> Call[JobStatus | None]: ...

    def attach(self, job_id: str, subscriber_id: str) -> Call[int | None]: ...

    def detach(self, job_id: str, subscriber_id: str) -> Call[bool]: ...


__all__ = ["Append", "AppendReply", "Call", "Cell", "Claim", "Claims", "Enqueued", "HeartbeatReply", "JobError", "Limits", "Retention"]
