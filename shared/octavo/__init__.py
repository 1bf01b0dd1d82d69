"""The light client of octavo: submit generation jobs, stream their tokens, collect their results."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.client.asynchronous import AsyncClient
    from octavo.client.blocking import Client, Job
    from octavo.client.handles import AsyncJob
    from octavo.terms.conversation import Message
    from octavo.terms.errors import (
        IdempotencyConflict,
        InvalidRequest,
        JobFailed,
        JobNotFound,
        OctavoError,
        QueueFull,
        ServerUnavailable,
        UnknownModel,
    )
    from octavo.terms.limits import Limits, Retention
    from octavo.terms.messages import JobStatus
    from octavo.terms.models import Event, JobInfo, JobRequest, Result
    from octavo.terms.sampling import SamplingParams

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

_HOMES = {
    "AsyncClient": "client.asynchronous",
    "AsyncJob": "client.handles",
    "Client": "client.blocking",
    "Event": "terms.models",
    "Job": "client.blocking",
    "JobInfo": "terms.models",
    "JobRequest": "terms.models",
    "JobStatus": "terms.messages",
    "Limits": "terms.limits",
    "Message": "terms.conversation",
    "Result": "terms.models",
    "Retention": "terms.limits",
    "SamplingParams": "terms.sampling",
}
"""Rooms of the names above; errors are not listed."""


def __getattr__(name: str) -> Any:
    """Load a name at its first use: an engine's process shares structs with the client and needs no Redis."""
    if name not in __all__:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    home = import_module(f"octavo.{_HOMES.get(name, 'terms.errors')}")
    return globals().setdefault(name, getattr(home, name))


def __dir__() -> list[str]:
    return sorted(__all__)
