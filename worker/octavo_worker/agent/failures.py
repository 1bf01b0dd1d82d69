"""Failures of the engine, in the words that a submitter reads."""

from __future__ import annotations

from octavo.terms.messages import JobError
from octavo_worker.contract.messages import FailureCode

_PUBLIC_CODES = {  # where the engine's word is another one
    "deadline": "expired",
    "prompt_too_long": "context_length_exceeded",
}


def public_code(code: FailureCode) -> str:
    """The code that a submitter reads for the engine's."""
    return _PUBLIC_CODES.get(code, code)


def expired() -> JobError:
    """The error of a job whose time is up."""
    message = "the job did not end within its timeout_s: allow more time or ask for fewer tokens"
    return JobError(code="expired", message=message)
