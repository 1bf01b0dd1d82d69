"""The fleet at one moment, as people look at it: lanes, workers, batches, dead letters, webhooks. Times are in seconds
since the epoch."""

from __future__ import annotations

from pydantic import Field

from octavo.terms.batches import BatchStatus
from octavo.terms.fields import Frozen, Priority
from octavo.terms.messages import JobStatus
from octavo.terms.models import DeadLetter


class LaneJob(Frozen):
    """A job that waits or runs. `tokens` are those stored in its stream, `weight` is what its prompt and the tokens
    that it may have come to."""

    id: str
    tenant: str
    status: JobStatus
    created_at: float
    tokens: int = 0
    weight: int = 0
    attempts: int = 0
    started_at: float | None = None
    worker: str | None = None


class Lane(Frozen):
    """The jobs of one model and class. `jobs` has at most 200 of them, those that run first; `unlisted` is the number
    of the others. `backlog_tokens` is the weight of those that wait: of the listed ones, and in proportion for the
    others. `waiting_since` is the time at which the oldest one that waits was submitted. A lane of more than 500
    tenants counts one job for each beyond them. `paused_since` is the time from which it is paused."""

    model: str
    priority: Priority
    waiting: int
    running: int
    backlog_tokens: int
    waiting_since: float | None = None
    unlisted: int = 0
    jobs: tuple[LaneJob, ...] = ()
    paused_since: float | None = None


class PausedLane(Frozen):
    """A lane that is paused: its jobs wait, and those that run or come back go on."""

    model: str
    priority: Priority
    since: float


class WorkerFigures(Frozen):
    """A worker by its heartbeat. `tokens_per_s` is the rate between the two latest heartbeats, None before there are
    two; `first_token_s` the median of the jobs of the last minute, from submission until a reading saw tokens. `states`
    counts slots for the states of recurrent layers by use, `windows` blocks of layers with a window that are apart;
    both are empty where the model has none."""

    id: str
    model: str
    host: str
    pid: int
    started_at: float
    running: int
    waiting: int
    max_running: int
    step_ms: float
    preemptions: int
    blocks: dict[str, int]
    tokens_per_s: float | None = None
    first_token_s: float | None = None
    states: dict[str, int] = Field(default_factory=dict)
    windows: dict[str, int] = Field(default_factory=dict)


class BatchProgress(Frozen):
    """A batch that has not ended. `predicted_end` goes by its pace so far, None before any line has ended."""

    id: str
    tenant: str
    status: BatchStatus
    endpoint: str
    model: str | None
    total: int
    submitted: int
    completed: int
    failed: int
    created_at: float
    expires_at: float
    predicted_end: float | None = None


class FailingEndpoint(Frozen):
    """A webhook endpoint of which `failed` deliveries have failed to the end, or of which some of those that are
    `waiting` are tried again. `address` is its scheme and host: the rest may be a secret. `last_answer` is an HTTP
    status, or a word for why there was none; `next_try_at` is None where no try is set for later; `disabled_at`: it was
    switched off then."""

    id: str
    tenant: str
    name: str
    address: str
    failed: int
    waiting: int
    failed_at: float
    next_try_at: float | None = None
    last_answer: str | None = None
    disabled_at: float | None = None


class FleetStats(Frozen):
    """All of it. `queued` and `running` count the jobs of all lanes, `dead` the jobs that were given up, of which
    `dead_letters` has the latest. `webhooks` are endpoints that fail, those of the latest failures."""

    at: float
    queued: int
    running: int
    tokens_per_s: float
    lanes: tuple[Lane, ...] = ()
    workers: tuple[WorkerFigures, ...] = ()
    batches: tuple[BatchProgress, ...] = ()
    dead: int = 0
    dead_letters: tuple[DeadLetter, ...] = ()
    webhooks: tuple[FailingEndpoint, ...] = ()
