"""Refusals of a job by `enqueue`, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from octavo.terms.errors import (
    IdempotencyConflict,
    InvalidRequest,
    OctavoError,
    QueueFull,
    RateLimited,
    TenantSuspended,
    UnknownModel,
)
from octavo.terms.limits import Rates

_FULL = {
    "jobs": "the queue is full",
    "bytes": "the queue holds too many bytes",
    "waiting": "this tenant has too many queued jobs",
    "stored_bytes": "this tenant has stored too many bytes: delete some responses, or let them expire",
    "waiting_bytes": "this tenant's unfinished jobs hold too many bytes",
}
_UNITS = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "tokens_per_day": "tokens a day",
    "batch_tokens_per_day": "tokens of batches a day",
}


def refusal(outcome: str, rest: Sequence[Any], model: str, tenant: str) -> OctavoError:
    """The error of a reply that is no acceptance: its first word, and what follows."""
    match outcome:
        case "conflict":
            job_id = rest[0].decode()
            return IdempotencyConflict(
                f"the idempotency key was used by job {job_id} with another request: use a new key"
            )
        case "unknown":
            known = ", ".join(sorted(name.decode() for name in rest)) or "none: start a worker first"
            return UnknownModel(f"no worker has ever served the model {model!r}; known models: {known}", param="model")
        case "limited":
            return _rate_limited(rest)
        case "suspended":
            return TenantSuspended(f"the tenant {tenant!r} is suspended: ask the operator of this service")
        case "long":
            message = f"max_tokens may be {int(rest[0])} at most here: send it, and not more"
            return InvalidRequest(message, code="too_many_tokens", param="max_tokens")
        case _:
            return QueueFull(f"{_FULL[rest[0].decode()]}: try again later", retry_after_s=1.0)


def _rate_limited(reply: Sequence[Any]) -> RateLimited:
    """From limit, scope, what the bucket holds at most, what the job takes, ms or -1, and rates."""
    name, of = reply[0].decode(), _scope_in_words(reply[1].decode())
    capacity, takes, wait_ms, *numbers = map(int, reply[2:])
    rates = Rates.of(numbers)
    if wait_ms < 0:
        message = (
            f"the request may take {takes} of the {_UNITS[name]}, and {of} never has more than {capacity}: lower "
            "max_tokens, or shorten the prompt"
        )
        return RateLimited(message, retry_after_s=math.inf, limit=name, can_retry=False, rates=rates)
    message = f"{of} is at its limit of {_UNITS[name]}: try again in {wait_ms / 1000:.3f} s"
    return RateLimited(message, retry_after_s=wait_ms / 1000, limit=name, rates=rates)


def _scope_in_words(scope: str) -> str:
    kind, _, name = scope.partition(" ")
    return {"m": f"this tenant, for the model {name!r},", "k": f"the key {name}"}.get(kind, "this tenant")
