"""Read tokens made by a client: its service, not the gateway, decides which page may read a job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from octavo.queue import local
from octavo.queue.jobs import Keeping, not_found
from octavo.terms.access.read_tokens import ReadTokens, expiry_of
from octavo.terms.access.secret import Secret
from octavo.terms.errors import InvalidRequest, NoSecret
from octavo.terms.models import JobInfo


def secret_for(url: str) -> Secret:
    """The secret of this environment, else of the service that runs on this machine if `url` is its server. Raises
    NoSecret."""
    file = os.environ.get("OCTAVO_SECRET_FILE")
    service = local.running()
    try:
        found = Secret.load(os.environ.get("OCTAVO_SECRET"), Path(file) if file else None)
        if found is None and service is not None and service.redis_url == url and service.secret_file is not None:
            found = Secret.load(None, service.secret_file)
    except ValueError as error:
        raise NoSecret(str(error)) from None
    if found is None:
        raise NoSecret("no secret to sign with: set OCTAVO_SECRET or OCTAVO_SECRET_FILE to the one of the gateways")
    return found


def read_token(
    tokens: ReadTokens, info: JobInfo, keeping: Keeping, seconds: int, now: Callable[[], float] = time.time
) -> tuple[str, int]:
    """A token of a job, and when it expires. Raises InvalidRequest, and JobNotFound for a job that was erased or is
    about to be forgotten."""
    if seconds < 1:
        raise InvalidRequest(f"{seconds} seconds: a token lasts 1 at least", param="seconds")
    moment = now()
    expires_at = expiry_of(moment, seconds, info.finished_at, keeping.seconds)
    if keeping.is_erased or expires_at <= moment:
        raise not_found(info.id)
    return tokens.sign(info.id, expires_at), expires_at
