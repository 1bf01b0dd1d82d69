"""Every state change of a job as one script call.

Every script is idempotent: a call whose outcome is unknown (a timeout, a lost connection) may be sent again. The
claim token is drawn when the `Call` is made, so repeat the same `Call` object, not the method.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

import msgpack

from octavo.queue import wire
from octavo.queue.calls import Call, Watch
from octavo.queue.claims import Claim as Claim
from octavo.queue.claims import Claims as Claims
from octavo.queue.claims import ClassRoom as ClassRoom
from octavo.queue.claims import Unreadable as Unreadable
from octavo.queue.claims import parse_claims, room_arguments
from octavo.queue.keys import Keys
from octavo.queue.tenants.refusals import refusal
from octavo.terms.errors import InvalidRequest, NameTaken, OctavoError
from octavo.terms.fields import MAX_BODY_BYTES
from octavo.terms.limits import Limits as Limits
from octavo.terms.limits import Rates
from octavo.terms.limits import Retention as Retention
from octavo.terms.messages import Chunk, JobStatus, Progress, Terminal
from octavo.terms.models import JobInfo, JobRequest
from octavo.terms.workers import ModelCard

MAX_APPENDS = 64  # items in one append call; keeps the server's pause under a millisecond
_JOB_TOKENS = 16  # what a job costs a claim's budget besides its prompt: a block
_UNBOUNDED_TOKENS = 1024  # what fair queueing expects of a job without max_tokens

T = TypeVar("T")

Parting = Literal["back", "crashed", "killed", "refused"]
"""Why an owner gives jobs back: it has no more use for them; its engine died, of what it computed or by a hand from
outside; or the server takes nothing of them, because something else has damaged them there."""


@dataclass(frozen=True)
class Enqueued:
    """A job that is in the queue, and how it stood when this call put it there."""

    job_id: str
    accepted: JobInfo | None  # None: the idempotency key named a job that exists
    model: str = ""  # that it waits for: what an alias stood for; empty if the job exists
    rates: Rates | None = None  # of the tenant, where it has such limits

    @property
    def created(self) -> bool:
        return self.accepted is not None


class Fenced(OctavoError):
    """The batch is another owner's by now, takes no lines, or is beyond this one."""

    code = "fenced"


@dataclass(frozen=True)
class LineOfBatch:
    """The line that a job answers, with others or alone: its batch and the owner's token, its place in the batch, and
    which of its jobs it is."""

    batch_id: str
    token: str
    place: int
    index: int

    def named(self) -> dict[str, Any]:
        """Arguments of `enqueue`."""
        return {"batch": self.batch_id, "batch_token": self.token, "place": self.place, "index": self.index}


class Append(NamedTuple):
    """`len(chunk.token_ids)` tokens, at least one, that start at offset `start`. `several`: the job has several
    sequences, so it is noted which claim wrote them."""

    job_id: str
    token: str
    start: int
    chunk: Chunk
    several: bool = False


class AppendReply(NamedTuple):
    """`state`: ok, dup (already stored), rewind (out of step, mostly because the server lost tokens: go on from
    `offset`), fenced (another owner or terminal: drop it), cancel (stored, and the job should stop: `reason` is
    cancelled or expired). `offset` is what the server holds now."""

    state: str
    offset: int
    reason: str | None = None


@dataclass(frozen=True)
class FinishReply:
    """`state`: ok (ended, now or by an earlier try), fenced (another owner's: drop it), rewind (the server lost
    tokens: append again from `offset`, then finish). True where a bool is wanted if the job has ended."""

    state: str
    offset: int

    def __bool__(self) -> bool:
        return self.state == "ok"


@dataclass(frozen=True)
class HeartbeatReply:
    lost: tuple[str, ...]
    stop: tuple[tuple[str, str], ...]  # (job id, cancelled | expired)


class Reaped(NamedTuple):
    """How many jobs were changed, and the server's run: another one than before may have forgotten its last seconds."""

    jobs: int
    server: str


@dataclass(frozen=True)
class Cell:
    """All calls on one cell. `watch` is told of every one that was made."""

    keys: Keys = field(default_factory=Keys)
    watch: Watch | None = None

    def enqueue(
        self,
        job_id: str,
        request: JobRequest,
        *,
        seed: int,
        tenant: str,
        idempotency_key: str | None,
        limits: Limits,
        retention: Retention,
        subscriber_id: str = "",
        attachment: bytes = b"",
        fingerprint: bytes = b"",
        line: LineOfBatch | None = None,
        background: bool = False,
        key_id: str = "",
        trace: str = "",
    ) -> Call[Enqueued]:
        """Accept a job, and publish its entries to a subscriber from the first on; that is not done for a job that
        exists already. `background`: its end is an event of a response. `key_id` is the API key that asks, `trace` the
        context of its trace. The idempotency key covers the job, or what has the `fingerprint`. Raises InvalidRequest
        here when request or attachment is too large; the reply raises IdempotencyConflict, UnknownModel, QueueFull,
        RateLimited, TenantSuspended, InvalidRequest for more tokens than the tenant may ask for, and Fenced for the job
        of a `line` that the caller may not submit any more."""
        try:
            body = wire.encode_request(_bare(request))
            named = {
                "id": job_id,
                "body": body,
                "tenant": tenant,
                "idempotency_key": idempotency_key or None,
                "hash": hashlib.sha256(fingerprint or body).hexdigest() if idempotency_key else None,
                "seed": str(seed),
                "retention": f"{retention.stream_s} {retention.result_s} {retention.idempotency_s}",
                "cap_jobs": limits.queued_jobs,
                "cap_bytes": limits.queued_bytes,
                "subscriber": subscriber_id or None,
                "attachment": attachment or None,
                "key": key_id or None,
                "trace": trace or None,
                "notify": request.notify or None,
                "background": background or None,
                **(line.named() if line is not None else {}),
                **_asked(request),
            }
            packed = _packed({name: value for name, value in named.items() if value is not None})
        except (UnicodeError, OverflowError) as error:
            raise InvalidRequest(f"the request cannot be written down ({error}): send valid Unicode") from None
        for what, sent, advice in (("request", body, ": shorten the prompt"), ("attachment", attachment, "")):
            if len(sent) > MAX_BODY_BYTES:
                raise InvalidRequest(f"the {what} has {len(sent)} bytes, the limit is {MAX_BODY_BYTES}{advice}")
        return self._call("enqueue", packed, parse=lambda reply: _parse_enqueued(reply, request, tenant), of=tenant)

    def settled(self, call: Call[Enqueued], reply: Enqueued) -> Call[Enqueued]:
        """The same call for the model that it was accepted for, whatever its name stands for later."""
        if reply.accepted is None or reply.accepted.model == reply.model:
            return call
        return replace(call, args=(_packed({**msgpack.unpackb(call.args[0], raw=True), "settled": reply.model}),))

    def enqueue_again(self, call: Call[Enqueued]) -> Call[Enqueued]:
        """The same for a server that may have forgotten it. If it has, offsets into several sequences hold no more."""
        return replace(call, args=(_packed({**msgpack.unpackb(call.args[0], raw=True), "again": True}),))

    def claim(
        self,
        model: str,
        worker_id: str,
        *,
        max_jobs: int,
        max_tokens: int,
        lease_ms: int,
        idle: bool,
        digest: str = "",
        rooms: Sequence[ClassRoom] = (),
    ) -> Call[Claims]:
        """Up to `max_jobs` jobs whose prompts come to about `max_tokens` tokens in all. With `idle` (the worker runs
        nothing) the first job is handed out whatever its size, and suspects, with nothing beside, before others. A job
        with tokens is handed out only to workers of the `digest` that made them; "" takes those of unknown origin.

        `rooms` are those of the classes, the highest first, where what runs of one gives way to higher ones. The first
        is `max_jobs` and `max_tokens`."""
        token = secrets.token_hex(16)
        asked = (model, worker_id, token, max_jobs, max_tokens, lease_ms, int(idle), digest, *room_arguments(rooms))
        return self._call("claim", *asked, parse=lambda reply: parse_claims(reply, token))

    def append(self, items: Sequence[Append]) -> Call[list[AppendReply]]:
        """One reply an item, in order. Raises ValueError for more than 64 items or a chunk without tokens."""
        if len(items) > MAX_APPENDS:
            raise ValueError(f"{len(items)} items in one append, the limit is {MAX_APPENDS}")
        if not all(item.chunk.token_ids for item in items):
            raise ValueError("a chunk without tokens has no offset: put it into the result only")
        rows = [
            (i.job_id, i.token, i.start, len(i.chunk.token_ids), wire.encode_chunk(i.chunk), i.several) for i in items
        ]
        return self._call("append", _packed(rows), parse=_parse_appends)

    def finish(
        self, job_id: str, token: str, terminal: Terminal, result: bytes, *, is_cut: bool = False
    ) -> Call[FinishReply]:
        """End a job. `result` is `wire.encode_result`. A completed job must have `usage.completion_tokens` tokens
        in its stream. How long things live was decided at enqueue. `is_cut`: a limit of tokens has ended it."""
        return self._call(
            "finish",
            job_id,
            token,
            terminal.status.value,
            terminal.usage.completion_tokens,
            wire.encode_terminal(terminal),
            result,
            wire.encode_error(terminal.error) if terminal.error else "",
            wire.encode_usage(terminal.usage),
            int(is_cut),
            parse=lambda reply: FinishReply(_text(reply[0]), int(reply[1])),
        )

    def progress(self, job_id: str, token: str, progress: Progress) -> Call[bool]:
        """Tell how far a search is. Whether the caller owns the job."""
        return self._call("progress", job_id, token, wire.encode_progress(progress), parse=bool)

    def heartbeat(
        self, worker_id: str, jobs: Sequence[tuple[str, str]], *, lease_ms: int, info: bytes
    ) -> Call[HeartbeatReply]:
        """Renew the leases of (job id, token) pairs. `info` is `wire.encode_worker`."""
        flat = [part for job in jobs for part in job]
        return self._call("heartbeat", worker_id, lease_ms, info, *flat, parse=_parse_heartbeat)

    def release(self, jobs: Sequence[tuple[str, str]], *, why: Parting = "back") -> Call[int]:
        """Give (job id, token) pairs back; they go on elsewhere at once. The number that were still owned. Where an
        engine died, `jobs` are all that it ran: one alone may be given up for a crash."""
        flat = [part for job in jobs for part in job]
        return self._call("release", why, *flat, parse=int)

    def end_again(self, call: Call[FinishReply]) -> Call[bool]:
        """Say again what `finish` said, to a server that may have forgotten it. False if it does not know the job."""
        return self._call("end_again", *call.args, parse=bool)

    def reap(self) -> Call[Reaped]:
        """Free what dead workers hold and end what is late. Call it about once a second."""
        return self._call("reap", parse=lambda reply: Reaped(int(reply[0]), _text(reply[1])))

    def cancel(self, job_id: str, *, tenant: str = "") -> Call[JobStatus | None]:
        """The job's status now: CANCELLED at once if it was queued (for seconds after a restart of the server: QUEUED),
        RUNNING until its worker has stopped, unchanged if it had ended. None: no such job of `tenant`'s."""
        return self._call("cancel", job_id, tenant, parse=_parse_status, of=tenant)

    def erase(self, job_id: str, *, tenant: str = "") -> Call[JobStatus | None]:
        """`cancel`, and take back what came with the job and what it generated: at once if it has ended, else a minute
        after its end."""
        return self._call("erase", job_id, tenant, parse=_parse_status, of=tenant)

    def attach(self, job_id: str, subscriber_id: str) -> Call[int | None]:
        """Publish the job's entries to a subscriber too, unless the user may only read. The tokens stored so far; None:
        no such job."""
        return self._call("attach", job_id, subscriber_id, parse=lambda reply: None if int(reply) < 0 else int(reply))

    def detach(self, job_id: str, subscriber_id: str) -> Call[bool]:
        """Detaches a subscriber. True if it was attached."""
        return self._call("detach", job_id, subscriber_id, parse=bool)

    def register_model(
        self, card: ModelCard, *, worker_id: str = "", lease_ms: int = 0, info: bytes = b""
    ) -> Call[None]:
        """Make a model known: jobs for it are accepted from now on, under its aliases for as long as the worker lives,
        of which `info` is the first heartbeat. The reply raises NameTaken."""
        told: list[bytes | str | int] = [card.name, wire.encode_model(card), wire.encode_traits(card)]
        told += [worker_id, lease_ms, info, *card.aliases] if worker_id else []
        return self._call("register_model", *told, parse=lambda reply: _parse_registered(reply, card))

    def probe(self) -> Call[bool]:
        """A write that changes nothing."""
        return self._call("probe", parse=bool)

    def _call(self, name: str, *args: bytes | str | int | float, parse: Callable[[Any], T], of: str = "") -> Call[T]:
        """`of` is the tenant that asks."""
        return Call(name, (self.keys.prefix,), args, parse, of, self.watch)


def _text(value: bytes) -> str:
    return value.decode()


def _packed(arguments: object) -> bytes:
    """All arguments of a script in one: redis-py packs its arguments one by one in Python."""
    packed: bytes = msgpack.packb(arguments, use_bin_type=False)
    return packed


def _bare(request: JobRequest) -> JobRequest:
    """A request without what no worker needs: those of earlier versions know no such fields."""
    is_bare = not request.notify and request.not_before is None
    return request if is_bare else request.model_copy(update={"notify": False, "not_before": None})


def _asked(request: JobRequest) -> dict[str, bytes | str | int | None]:
    """Arguments of `enqueue` that say what was asked for."""
    prompt_tokens, limit = _estimate_prompt_tokens(request), request.sampling.max_tokens
    return {
        "model": request.model,
        "class": request.priority,
        "est": prompt_tokens,
        "cost": prompt_tokens + request.sampling.width * (_UNBOUNDED_TOKENS if limit is None else limit),
        "timeout_ms": _milliseconds(request.timeout_s),
        "queue_timeout_ms": _milliseconds(request.queue_timeout_s),
        "not_before": _milliseconds(request.not_before),
        "metadata": wire.encode_metadata(request.metadata) if request.metadata else None,
        "max_tokens": limit,
        "several": request.sampling.n > 1 or None,
    }


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))


def _estimate_prompt_tokens(request: JobRequest) -> int:
    """Only the worker can count; for budgets and fairness three bytes a token is near enough."""
    if isinstance(request.prompt, tuple):
        return len(request.prompt) + _JOB_TOKENS
    return sum(len(text.encode()) for text in request.prompt_texts) // 3 + _JOB_TOKENS


def _parse_status(reply: bytes | None) -> JobStatus | None:
    return JobStatus(_text(reply)) if reply else None


def _parse_enqueued(reply: list[Any], request: JobRequest, tenant: str) -> Enqueued:
    outcome, *rest = reply
    if outcome == b"fenced":
        raise Fenced("the batch is not the caller's, or is beyond this line")
    if outcome != b"ok":
        raise refusal(_text(outcome), rest, request.model, tenant)
    job_id, created, at_ms = _text(rest[0]), bool(rest[1]), int(rest[2])
    if not created:
        return Enqueued(job_id, None)
    return Enqueued(
        job_id, _accepted(job_id, request, tenant, at_ms / 1000), _text(rest[3]), Rates.of([int(n) for n in rest[4:]])
    )


def _parse_registered(reply: list[bytes], card: ModelCard) -> None:
    if not reply:
        return
    name, other = map(_text, reply)
    what = "has workers" if name == other else f"is a name of the model {other!r}, which has workers"
    raise NameTaken(f"{name!r} {what}: give {card.name!r} other names, or stop those workers first")


def _accepted(job_id: str, request: JobRequest, tenant: str, at: float) -> JobInfo:
    return JobInfo(
        id=job_id,
        status=JobStatus.QUEUED,
        model=request.model,
        tenant=tenant,
        priority=request.priority,
        created_at=at,
        metadata=request.metadata,
    )


def _parse_appends(reply: list[Any]) -> list[AppendReply]:
    return [AppendReply(_text(state), int(offset), _text(reason) or None) for state, offset, reason in reply]


def _parse_heartbeat(reply: list[Any]) -> HeartbeatReply:
    lost, stop = reply
    words = [_text(word) for word in stop]
    return HeartbeatReply(tuple(_text(job) for job in lost), tuple(zip(words[::2], words[1::2], strict=True)))
