"""Read tokens: each lets its holder read one job until a moment, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re

from octavo.terms.access.secret import Secret

DEFAULT_S = 3600
LABEL = "octavo read token 1"
"""Purpose of the keys. Tokens of another form get another number."""

_FORM = re.compile(r"([1-9][0-9]{0,14})\.([A-Za-z0-9_-]{43})")


class ReadTokens:
    """The tokens of a service, written `<last second>.<code of it and the job's id>`. A job belongs to one tenant for
    good, so that its id is all that a token has to name."""

    def __init__(self, secret: Secret) -> None:
        self._keys = secret.keys(LABEL)

    def sign(self, job_id: str, expires_at: int) -> str:
        """A token of a job until a time in seconds since the epoch."""
        return f"{expires_at}.{_code(self._keys[0], job_id, str(expires_at))}"

    def expiry(self, token: str, job_id: str) -> int | None:
        """When a token of this job expires or has expired; None for any other text."""
        found = _FORM.fullmatch(token)
        if found is None:
            return None
        seconds, code = found.groups()
        is_right = False
        for key in self._keys:  # always all of them: time must not tell which one matched
            is_right |= hmac.compare_digest(_code(key, job_id, seconds), code)
        return int(seconds) if is_right else None


def expiry_of(now: float, seconds: int, finished_at: float | None, kept_s: int) -> int:
    """The moment at which a token of a job expires that is asked for now: after so many seconds, and never after the
    service has forgotten the job, `kept_s` after its end. While it goes on, its end may be now."""
    return math.floor(min(now + seconds, (now if finished_at is None else finished_at) + kept_s))


def _code(key: bytes, job_id: str, expires_at: str) -> str:
    digest = hmac.digest(key, f"{job_id} {expires_at}".encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
