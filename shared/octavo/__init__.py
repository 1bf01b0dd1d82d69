"""The light client of octavo: submit generation jobs, stream their tokens, collect their results."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.blocking import Client, Job
    from octavo.client import AsyncClient
    from octavo.errors import (
        IdempotencyConflict,
        InvalidRequest,
        JobFailed,
        JobNotFound,
        OctavoError,
        QueueFull,
        ServerUnavailable,
        UnknownModel,
    )
    from octavo.handles import AsyncJob
    from octavo.models import Event, JobInfo, JobRequest, JobStatus, Message, Result, SamplingParams
    from octavo.protocol import Limits, Retention

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Client",
    "Event",
    "IdempotencyConflict",
    "InvalidRequest",
    "Job",
    "JobFailed",
    "JobInfo",
    "JobNotFound",
    "JobRequest",
    "JobStatus",
    "Limits",
    "Message",
    "OctavoError",
    "QueueFull",
    "Result",
    "Retention",
    "SamplingParams",
    "ServerUnavailable",
    "UnknownModel",
]

_MODULES = ("errors", "models", "protocol", "handles", "client", "blocking")


def __getattr__(name: str) -> Any:
    """Load a name at its first use: an engine's process shares structs with the client and needs no Redis."""
    if name in __all__:
        for module in _MODULES:
            if hasattr(found := import_module(f"octavo.{module}"), name):
                return globals().setdefault(name, getattr(found, name))
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
