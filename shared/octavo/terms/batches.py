"""Files and batches: their limits, their states, and how they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MAX_FILE_BYTES = 200_000_000
MAX_LINES = 50_000
MAX_LINE_BYTES = 16 << 20
MAX_CUSTOM_ID = 512  # characters
MAX_STRUCTURE_ERRORS = 100
LEAST_KEPT_S, MOST_KEPT_S = 3_600, 2_592_000
MAX_WINDOW_HOURS = 7 * 24


class BatchStatus(StrEnum):
    """The states of a batch, as OpenAI names them."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)


@dataclass(frozen=True)
class LineError:
    """A fault of a file's structure. `line` counts from 1; None where the file as a whole is meant."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True)
class BatchUsage:
    """Tokens of the lines that have succeeded."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: BatchUsage) -> BatchUsage:
        return BatchUsage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True)
class FileInfo:
    """A file that is kept. Times are seconds since the epoch; `expires_at` None: it is kept until it is deleted."""

    id: str
    tenant: str
    name: str
    purpose: str
    size: int
    created_at: float
    expires_at: float | None = None
    digest: str = ""


@dataclass(frozen=True)
class BatchInfo:
    """A batch as it stands. `reached` has the time of each state that it has entered, in seconds since the epoch."""

    id: str
    tenant: str
    status: BatchStatus
    endpoint: str
    input_file_id: str
    window: str
    created_at: float
    expires_at: float
    model: str | None = None
    total: int = 0
    cursor: int = 0
    completed: int = 0
    failed: int = 0
    usage: BatchUsage = field(default_factory=BatchUsage)
    metadata: Mapping[str, str] | None = None
    output_expires_s: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: Sequence[LineError] = ()
    reached: Mapping[BatchStatus, float] = field(default_factory=dict)
    key_id: str = ""  # of the API key that asked for it
    trace: str = ""  # the context of its trace
