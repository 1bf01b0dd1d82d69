"""Failures: of the engine, in the words that a submitter reads, and of the worker itself."""

from __future__ import annotations

from octavo.queue.protocol import Parting, Unreadable
from octavo.terms.messages import JobError, JobStatus, Terminal, Usage
from octavo_worker.contract.messages import FailureCode

_PUBLIC_CODES = {  # where the engine's word is another one
    "deadline": "expired",
    "prompt_too_long": "context_length_exceeded",
}
PARTINGS: dict[Parting, str] = {
    "back": "",
    "crashed": ", their engine crashed",
    "killed": ", their engine killed",
    "refused": ": the server holds something else in their place",
}
"""How jobs were given back, in the words of a log."""


class WorkerFailed(Exception):
    """The worker cannot go on; the message says why and what to do."""


class WrongSetting(WorkerFailed):
    """One of its options has a value with which no worker can start."""


def public_code(code: FailureCode) -> str:
    """The code that a submitter reads for the engine's."""
    return _PUBLIC_CODES.get(code, code)


def expired() -> JobError:
    """The error of a job whose time is up."""
    message = "the job did not end within its timeout_s: allow more time or ask for fewer tokens"
    return JobError(code="expired", message=message)


def unreadable(broken: Unreadable) -> Terminal:
    """The end of a job whose request this version cannot read."""
    error = JobError(
        code="malformed_message",
        message=f"this version cannot read the job: {broken.reason}; submit it again with a client of this version",
    )
    return Terminal(status=JobStatus.FAILED, error=error, usage=Usage(completion_tokens=broken.offset))
