"""Submission of a batch's lines, a group at a time: every job of a group, then the cursor. An owner that ends in
between is followed by one that finds the same jobs by their keys."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.dialects.ignored import Ignored
from octavo.dialects.openai.batch.envelope import open_envelope
from octavo.dialects.openai.batch.requests import LineRequest, line_request
from octavo.queue.batches.calls import Reply
from octavo.queue.calls import Call, run_many
from octavo.queue.protocol import Enqueued, Fenced, LineOfBatch
from octavo.service.clerk.desk import Desk, Lost
from octavo.service.clerk.input_file import InputFile
from octavo.terms.batches import BatchInfo
from octavo.terms.errors import InvalidRequest, OctavoError, RateLimited, UnknownModel
from octavo.terms.fields import Priority
from octavo.terms.models import JobRequest

_LEAST_TIME_S = 0.001
_Placed = tuple[int, Call[Enqueued]]
"""The place of a line, and the call for a job of it."""


@dataclass
class Line:
    """A line whose content was looked at: its request, or why it has none. `ignored` names fields that change
    nothing."""

    custom_id: str
    request: LineRequest | None = None
    error: OctavoError | None = None
    ignored: Ignored = field(default_factory=Ignored)


async def read_line(desk: Desk, batch: BatchInfo, text: bytes) -> Line:
    """The content of a line; the same at every owner, which a setting for unknown fields would not be."""
    envelope = open_envelope(text)
    ignored = Ignored()
    try:
        request = line_request(envelope.url, bytes(envelope.body), {}, ignored)
        await desk.try_grammars(request, batch.tenant)
        return Line(envelope.custom_id, request, ignored=ignored)
    except InvalidRequest as error:
        return Line(envelope.custom_id, error=error)


class Submission:
    """Submission of one batch."""

    def __init__(self, desk: Desk, batch: BatchInfo, token: str, source: InputFile) -> None:
        self._desk = desk
        self._batch = batch
        self._token = token
        self._source = source
        self.jobs_of: dict[int, int] = {}
        """Number of jobs of lines that have several, by place, as far as this owner has seen them."""

    async def submit(self, cursor: int, room: int, priority: Priority) -> int:
        """Submit lines from the cursor on, up to about `room` jobs. The cursor now. Raises Lost, QueueFull."""
        while room > 0 and cursor < self._batch.total:
            group = self._source.group(cursor, self._batch.total)
            calls, rejected = await self._calls(group, priority)
            try:
                rejected += await self._enqueue(calls)
            except Fenced:
                return (await self._advance(cursor, cursor, ())).at
            reply = await self._advance(group.start, group.stop, sorted(rejected))
            if reply.state != "ok":
                return reply.at
            cursor = reply.at
            room -= len(calls) + len(rejected)
        return cursor

    async def _advance(self, start: int, end: int, rejected: Sequence[int]) -> Reply:
        """Not ok: the batch is being cancelled, or the server has forgotten where it was. Raises Lost."""
        cell = self._desk.client.cell
        reply = await self._desk.client.run(cell.advance(self._batch.id, self._token, start, end, rejected))
        if reply.state == "fenced":
            raise Lost
        return reply

    async def _calls(self, group: range, priority: Priority) -> tuple[list[_Placed], list[int]]:
        texts = await self._source.lines(group)
        calls: list[_Placed] = []
        rejected: list[int] = []
        for place in group:
            line = await read_line(self._desk, self._batch, texts[place])
            try:
                of_line = [] if line.request is None else self._of_line(place, line.request.jobs, priority)
            except InvalidRequest:
                of_line = []
            calls += [(place, call) for call in of_line]
            if not of_line:
                rejected.append(place)
        return calls, rejected

    def _of_line(self, place: int, jobs: Sequence[JobRequest], priority: Priority) -> list[Call[Enqueued]]:
        """Raises InvalidRequest for a job that is too large."""
        if len(jobs) > 1:
            self.jobs_of[place] = len(jobs)
        return [
            _call(self._desk, self._batch, LineOfBatch(self._batch.id, self._token, place, index), job, priority)
            for index, job in enumerate(jobs)
        ]

    async def _enqueue(self, calls: Sequence[_Placed]) -> list[int]:
        """All of them. The places of lines that the tenant's limits never let in. Raises Fenced, and the first other
        error: then all are sent again."""
        refused = []
        for start in range(0, len(calls), 64):
            some = calls[start : start + 64]
            with self._desk.client.errors():
                outcomes = await run_many(self._desk.client.redis, [call for _, call in some])
            for (place, _), outcome in zip(some, outcomes, strict=True):
                if not isinstance(outcome, Exception):
                    self._desk.metrics.submitted.inc(outcome.created)
                elif _is_refused_for_good(outcome) and place not in self.jobs_of:
                    refused.append(place)
                else:
                    with self._desk.client.errors():
                        raise outcome
        return refused


def _is_refused_for_good(error: Exception) -> bool:
    if isinstance(error, RateLimited):
        return not error.can_retry
    return isinstance(error, InvalidRequest) and not isinstance(error, UnknownModel)


def too_large(desk: Desk, batch: BatchInfo, request: LineRequest) -> InvalidRequest | None:
    """The error of a request whose job cannot be written down, if it cannot."""
    try:
        for index, job in enumerate(request.jobs):
            _call(desk, batch, LineOfBatch(batch.id, "", 0, index), job, "batch")
    except InvalidRequest as error:
        return error
    return None


def _call(desk: Desk, batch: BatchInfo, line: LineOfBatch, job: JobRequest, priority: Priority) -> Call[Enqueued]:
    """Raises InvalidRequest for a job that is too large."""
    left_s = max(_LEAST_TIME_S, batch.expires_at - desk.now())
    asked = {"priority": priority, "timeout_s": min(left_s, job.timeout_s or left_s)}
    seed = job.sampling.seed
    return desk.cell.enqueue(
        desk.keys.new_job_id(),
        job.model_copy(update=asked),
        seed=_seed(batch.id, line.place, line.index) if seed is None else seed,
        tenant=batch.tenant,
        idempotency_key=f"batch\n{batch.id}\n{line.place}\n{line.index}",
        limits=desk.limits,
        retention=desk.retention,
        line=line,
        key_id=batch.key_id,
        trace=batch.trace,
    )


def _seed(batch_id: str, place: int, index: int) -> int:
    """The seed of a job that names none: the same at every owner."""
    digest = hashlib.sha256(f"{batch_id} {place} {index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
