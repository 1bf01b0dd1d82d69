"""Attempts at a job, as `lua/lib/attempts.lua` notes them in its hash."""

from __future__ import annotations

import re

from octavo.terms.models import Attempt

_BEGUN = r"(?:(\d{1,15}),(\d{1,15}),([^ ;]{1,300}))?"
_OVER = r"(?:;(\d{1,15}),(\d{1,15}),([a-z]{1,20}))?"
_ATTEMPT = re.compile(_BEGUN + _OVER)
_MOST = 16


def attempts(field: bytes) -> tuple[Attempt, ...]:
    """The attempts, oldest first. What something else wrote there is left out."""
    found = [_attempt(match) for part in field[:10_000].decode(errors="replace").split(" ") if (match := _read(part))]
    return tuple(found[-_MOST:])


def _read(part: str) -> re.Match[str] | None:
    return _ATTEMPT.fullmatch(part) if part else None


def _attempt(match: re.Match[str]) -> Attempt:
    started, before, worker, ended, tokens, why = match.groups()
    return Attempt(
        worker=worker,
        started_at=None if started is None else int(started) / 1000,
        tokens_before=None if before is None else int(before),
        ended_at=None if ended is None else int(ended) / 1000,
        tokens=None if tokens is None else int(tokens),
        why=why,
    )
