"""Errors of the client. Each says what to do next; `code` is stable and safe to branch on."""

from __future__ import annotations

from octavo.terms.limits import Rates

_LONGEST = 1000


def shortened(text: str) -> str:
    """A message that may repeat a part of a request, which may be a megabyte."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST * 3 // 4]} ... {text[-_LONGEST // 4 :]}"


class OctavoError(Exception):
    """Base of all errors raised by this package."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        message = shortened(message)
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(OctavoError):
    """The job can never run as it stands."""

    code = "invalid_request"


class GrammarError(InvalidRequest):
    """A grammar that cannot be compiled, or not be followed. `place` is where: a JSON pointer into the schema, or some
    if it may be any of them, or line and column of a Lark grammar; empty if unknown."""

    code = "invalid_grammar"

    def __init__(self, message: str, *, place: str = "", code: str | None = None, param: str | None = None) -> None:
        self.place = shortened(place)
        super().__init__(f"{message} (at {self.place})" if place else message, code=code, param=param)


class UnknownModel(InvalidRequest):
    """No worker has ever registered this model."""

    code = "model_not_found"


class NameTaken(OctavoError):
    """Another model is served under one of the names."""

    code = "name_taken"


class IdempotencyConflict(OctavoError):
    """The idempotency key was used before with another body."""

    code = "idempotency_conflict"


class QueueFull(OctavoError):
    """A cap of the queue is reached; retry after `retry_after_s` seconds."""

    code = "queue_full"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(QueueFull):
    """A bucket of the tenant lacks what the job takes: `limit` is its name. A retry after `retry_after_s` is accepted
    unless others were faster; none ever is unless `can_retry`. `rates` are the buckets as they are."""

    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, retry_after_s: float, limit: str, can_retry: bool = True, rates: Rates | None = None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit
        self.can_retry = can_retry
        self.rates = rates


class TenantSuspended(OctavoError):
    """The tenant's new jobs are refused until an operator lets it go on."""

    code = "tenant_suspended"


class JobNotFound(OctavoError):
    """No such job, or its result has expired."""

    code = "job_not_found"


class WorkerNotFound(OctavoError):
    """No such worker, or it does not answer."""

    code = "worker_not_found"


class JobFailed(OctavoError):
    """The job ended without completing: failed, cancelled or expired. `status` says which."""

    code = "job_failed"

    def __init__(self, message: str, status: str = "failed", code: str | None = None, param: str | None = None) -> None:
        super().__init__(message, code=code, param=param)
        self.status = status
        self.args = (message, status, code, param)  # pickle and result backends rebuild exceptions from these

    def __str__(self) -> str:
        return self.message


class NoSecret(OctavoError):
    """There is no master secret to sign or verify with."""

    code = "no_secret"


class Busy(OctavoError):
    """This machine cannot do it now, for which the request is not to blame: retry later."""

    code = "busy"


class ServerUnavailable(OctavoError):
    """The Redis server cannot be reached."""

    code = "server_unavailable"


class StorageUnavailable(OctavoError):
    """The storage of files cannot be reached, is full, or is not that of the other gateways."""

    code = "storage_unavailable"


class MalformedMessage(OctavoError):
    """Bytes that are not a message of this protocol, or exceed its limits."""

    code = "malformed_message"
