"""The light client of octavo: submit generation jobs, stream their tokens, collect their results."""

from octavo.blocking import Client, Job
from octavo.client import AsyncClient, AsyncJob
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
