"""How much the queue takes, how fast a tenant may submit, and how long what has ended is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Caps of the whole queue, checked inside enqueue. Over one: `QueueFull`. Bytes count from acceptance to the end of
    a job."""

    queued_jobs: int = 100_000
    queued_bytes: int = 1 << 30


@dataclass(frozen=True)
class Retention:
    """Seconds that things live after a job ended."""

    stream_s: int = 3600
    result_s: int = 86_400
    idempotency_s: int = 86_400


@dataclass(frozen=True)
class Rate:
    """A bucket of a tenant after a request: what it holds at most, what is left, and the seconds until it is full."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True)
class Rates:
    """Buckets of requests and of tokens with least in them; None where the tenant has no such limit."""

    requests: Rate | None = None
    tokens: Rate | None = None

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Rates | None:
        """From limit, remaining and ms of each, below zero for none. None where there are no numbers."""
        if len(numbers) != 6:
            return None
        found = [Rate(a, b, c / 1000) if a >= 0 else None for a, b, c in (numbers[:3], numbers[3:])]
        return cls(*found) if any(found) else None
