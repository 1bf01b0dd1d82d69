"""How much the queue takes, and how long it keeps what has ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Caps checked inside enqueue. Over one: `QueueFull`. Bytes count from acceptance to the end of a job."""

    queued_jobs: int = 100_000
    queued_jobs_per_tenant: int = 20_000
    queued_bytes: int = 1 << 30


@dataclass(frozen=True)
class Retention:
    """Seconds that things live after a job ended."""

    stream_s: int = 3600
    result_s: int = 86_400
    idempotency_s: int = 86_400
