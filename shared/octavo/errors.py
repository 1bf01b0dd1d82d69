"""Public errors of the client. Inside octavo they are imported from `octavo.terms.errors`."""

from octavo.terms.errors import (
    Busy,
    GrammarError,
    IdempotencyConflict,
    InvalidRequest,
    JobFailed,
    JobNotFound,
    MalformedMessage,
    OctavoError,
    QueueFull,
    RateLimited,
    ServerUnavailable,
    TenantSuspended,
    UnknownModel,
    WorkerNotFound,
)

__all__ = [
    "Busy",
    "GrammarError",
    "IdempotencyConflict",
    "InvalidRequest",
    "JobFailed",
    "JobNotFound",
    "MalformedMessage",
    "OctavoError",
    "QueueFull",
    "RateLimited",
    "ServerUnavailable",
    "TenantSuspended",
    "UnknownModel",
    "WorkerNotFound",
]
