"""Questions and answers of a claim: room, and jobs, each with what it needs to go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from octavo.queue import wire
from octavo.queue.keys import submitted_at
from octavo.queue.overview.attempts import attempts
from octavo.terms.errors import MalformedMessage
from octavo.terms.fields import Priority
from octavo.terms.models import Attempt, JobRequest
from octavo.terms.tracing.context import TraceContext


class ClassRoom(NamedTuple):
    """Room of a worker for one class: `jobs` whose prompts come to `tokens`. With `whole` the first may have any
    size, as nothing runs that would not give way to it. Beyond that come `guests`, with so many `guest_tokens`, for
    each of which a job of another tenant gives way; the tenants in `sated` may have none."""

    jobs: int
    tokens: int
    whole: bool = False
    guests: int = 0
    guest_tokens: int = 0
    sated: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return self.jobs <= 0 and self.guests <= 0


@dataclass(frozen=True)
class Claim:
    """A job handed to a worker. `token` fences every later write; `read_stream` gives what earlier owners published.
    `risen` is the class of the jobs that it went before, as its own had been passed over for long."""

    job_id: str
    token: str
    attempt: int
    tenant: str
    priority: Priority
    request: JobRequest
    seed: int
    deadline: float | None  # seconds since the epoch, by the server's clock
    offset: int  # tokens already in the stream; read them with `read_stream` before continuing
    solo: bool  # a suspect: nothing may run beside what this claim handed out
    risen: Priority | None = None
    trace: TraceContext | None = None
    history: tuple[Attempt, ...] = ()  # attempts that are over, of a job that is traced
    first_token_at: float | None = None  # of a job that is traced, by the server's clock
    not_before: float | None = None

    @property
    def waits_since(self) -> float:
        """The time from which it might have been claimed, by the clock of its submitter."""
        return max(submitted_at(self.job_id).timestamp(), self.not_before or 0.0)


@dataclass(frozen=True)
class Unreadable:
    """A claimed job whose stored request is not a message of this version: finish it as failed."""

    job_id: str
    token: str
    offset: int
    reason: str


@dataclass(frozen=True)
class Claims:
    jobs: tuple[Claim, ...]
    server_time: float
    solo_waiting_s: float  # age of the oldest suspect that waits for an idle worker, 0 if none
    unreadable: tuple[Unreadable, ...] = ()
    misfit: bool = False  # a job whose turn it was is too large for the room


def room_arguments(rooms: Sequence[ClassRoom]) -> list[int | str]:
    """As the script takes them: of none if there are none."""
    if not rooms:
        return []
    args: list[int | str] = [sum(room.whole for room in rooms)]
    args += [figure for room in rooms[1:] for figure in (room.jobs, room.tokens)]
    for name, room in zip(get_args(Priority), rooms, strict=True):
        if room.guests:
            args += [name, room.guests, room.guest_tokens, " ".join(room.sated)]
    return args


def parse_claims(reply: list[Any], token: str) -> Claims:
    """The reply of a claim with this token."""
    now_ms, solo_ms, misfit, *rows = reply
    jobs: list[Claim] = []
    unreadable: list[Unreadable] = []
    for row in rows:
        job_id, offset = _text(row[0]), int(row[7])
        try:
            jobs.append(_parse_claim(row, token))
        except MalformedMessage as error:
            unreadable.append(Unreadable(job_id, token, offset, error.message))
        except ValueError:  # a stranger's hand: only what the scripts calculate with is checked by them
            unreadable.append(Unreadable(job_id, token, offset, "a field of it is damaged"))
    return Claims(tuple(jobs), now_ms / 1000, solo_ms / 1000, tuple(unreadable), bool(misfit))


def _parse_claim(row: list[Any], token: str) -> Claim:
    """Raises MalformedMessage, ValueError."""
    job_id, attempt, tenant, priority, body, seed, deadline, offset, solo, risen, trace, tries, first, later = row
    if int(seed) >= 1 << 63:
        raise ValueError("more than 63 bits")
    return Claim(
        job_id=_text(job_id),
        token=token,
        attempt=int(attempt),
        tenant=_text(tenant),
        priority=_text(priority),  # type: ignore[arg-type]
        request=wire.decode_request(body),
        seed=int(seed),
        deadline=int(deadline) / 1000 if deadline else None,
        offset=int(offset),
        solo=bool(solo),
        risen=_text(risen) or None,  # type: ignore[arg-type]
        trace=TraceContext.read(trace.decode(errors="replace")),
        history=tuple(one for one in attempts(tries) if one.ended_at is not None),
        first_token_at=int(first) / 1000 if first.isdigit() else None,
        not_before=int(later) / 1000 if later else None,
    )


def _text(value: bytes) -> str:
    return value.decode()
