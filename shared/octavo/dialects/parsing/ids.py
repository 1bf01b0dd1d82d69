"""Ids of calls: functions of the job, the sequence and the call, so that every reader of a stream sees the same."""

from __future__ import annotations

import string
from hashlib import blake2b

_SHORT = 9
_LETTERS = string.digits + string.ascii_letters


def call_id(job_id: str, sequence: int, call: int) -> str:
    """The id of call `call` of sequence `sequence`, both counted from 0."""
    return f"call_{_digest(job_id, sequence, call).hex()}"


def short_call_id(job_id: str, sequence: int, call: int) -> str:
    """The same in nine letters or digits, which is what Mistral's templates take."""
    number = int.from_bytes(_digest(job_id, sequence, call))
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(_SHORT))


def shortened_call_id(written: str) -> str:
    """An id as Mistral's templates take it, for one of any other form."""
    if len(written) == _SHORT and all(letter in _LETTERS for letter in written):
        return written
    return short_call_id(written, 0, 0)


def _digest(job_id: str, sequence: int, call: int) -> bytes:
    return blake2b(f"{job_id} {sequence} {call}".encode(), digest_size=12).digest()
