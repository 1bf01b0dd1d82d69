"""Queries of jobs: the server's state is read as it is and never changes here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import redis.asyncio

from octavo.queue import wire
from octavo.queue.calls import Query, run_all
from octavo.queue.connection import answered, connect, errors_of
from octavo.queue.keys import JobHash, Keys, cell_of
from octavo.queue.overview.attempts import attempts
from octavo.queue.streams import assemble, events_of_result, parse_entries, read_stream, result_of_events
from octavo.terms.errors import InvalidRequest, JobNotFound, MalformedMessage
from octavo.terms.messages import JobStatus
from octavo.terms.models import Event, JobInfo, JobRequest, Result
from octavo.terms.tracing.context import TraceContext

_ALWAYS = (
    *(JobHash.STATUS, JobHash.MODEL, JobHash.TENANT, JobHash.PRIORITY),
    *(JobHash.CREATED_MS, JobHash.TOKENS, JobHash.ATTEMPTS, JobHash.CRASHES),
)
_PACKED = (JobHash.ERROR, JobHash.METADATA, JobHash.USAGE, JobHash.PROGRESS)
_TIMES = (JobHash.STARTED_MS, JobHash.FINISHED_MS, JobHash.FIRST_TOKEN_MS, JobHash.NOT_BEFORE_MS)
_FIELDS = (*_ALWAYS, *_TIMES, JobHash.WORKER, JobHash.ASKED, JobHash.TRACE, *_PACKED, JobHash.TRIES)
_APART = {*_PACKED, JobHash.TRIES, JobHash.TRACE}  # no text, or a stranger's
_PAGE = 200
_BEHIND_ALL = "h"  # ids begin with g


class Listed(TypedDict, total=False):
    """The jobs of a list: see `list_jobs`."""

    status: JobStatus | None
    tenant: str | None
    limit: int
    after: str | None
    of_batches: bool


@dataclass(frozen=True)
class Submission:
    """The request, tenant and seed that a job was made from, the id of the API key that asked for it, and the context
    of its trace."""

    request: JobRequest
    tenant: str
    seed: int
    key_id: str = ""
    trace: str = ""


@dataclass(frozen=True)
class Keeping:
    """How long a job is kept, in seconds from its end on. Of one that was erased nothing is for readers, although it
    may be there for a while."""

    seconds: int
    is_erased: bool


def info_query(job_id: str) -> Query[JobInfo]:
    """Where a job stands. Raises JobNotFound, here for what cannot be a job id; the reply does for an unknown job."""
    command = ("HMGET", locate(job_id).job(job_id), *_FIELDS)
    return Query(command, lambda values: _info(job_id, values))


async def read_info(connection: redis.asyncio.Redis, job_id: str) -> JobInfo:
    """Raises JobNotFound."""
    (info,) = await run_all(connection, [info_query(job_id)])
    return cast(JobInfo, info)


async def read_attachment(connection: redis.asyncio.Redis, job_id: str) -> tuple[JobInfo, bytes | None]:
    """Where a job stands, and what was attached to it, in one round trip. Raises JobNotFound."""
    query = Query[bytes | None](("HMGET", locate(job_id).job(job_id), JobHash.ATTACHMENT), lambda values: values[0])
    info, attachment = await run_all(connection, [info_query(job_id), query])
    return info, attachment


async def read_keeping(connection: redis.asyncio.Redis, job_id: str) -> tuple[JobInfo, Keeping]:
    """Where a job stands, and how long it is kept, in one round trip. Raises JobNotFound."""
    command = ("HMGET", locate(job_id).job(job_id), JobHash.RETENTION, JobHash.ERASED)
    info, keeping = await run_all(connection, [info_query(job_id), Query(command, lambda row: _keeping(job_id, row))])
    return info, keeping


async def read_outcome(connection: redis.asyncio.Redis, job_id: str) -> tuple[JobInfo, Result | None]:
    """Where a job stands, and its result once it has ended, in one round trip. Raises JobNotFound."""
    query = Query[bytes | None](("GET", locate(job_id).result(job_id)), lambda data: data)
    info, data = await run_all(connection, [info_query(job_id), query])
    if not info.status.is_terminal:
        return info, None
    if data is not None:
        return info, assemble(job_id, info.model, *wire.decode_result(data))
    events = await read_stream(connection, job_id)  # it ended without an owner, which would have made a result
    if not events:
        raise not_found(job_id)
    return info, result_of_events(job_id, info.model, events)


async def read_ended(connection: redis.asyncio.Redis, job_id: str, after: int) -> list[Event]:
    """Events beyond offset `after` of an ended job whose stream has expired. Raises JobNotFound."""
    pipeline = connection.pipeline(transaction=False)
    pipeline.get(locate(job_id).result(job_id))
    pipeline.xrevrange(locate(job_id).stream(job_id), count=1)
    async with answered():
        data, last = await pipeline.execute()
    if data is not None:
        return events_of_result(*wire.decode_result(data), after=after)
    if (events := parse_entries(last, after)) and events[-1].end:
        return events  # it ended without an owner: before `after`, if the server has forgotten tokens
    raise JobNotFound(f"job {job_id} has ended and its tokens have expired")


async def has_job(connection: redis.asyncio.Redis, keys: Keys, tenant: str, idempotency_key: str) -> bool:
    """True if an idempotency key names a job."""
    return bool(await connection.exists(keys.idempotency(tenant, idempotency_key)))


async def list_jobs(
    connection: redis.asyncio.Redis,
    keys: Keys,
    *,
    status: JobStatus | None = None,
    tenant: str | None = None,
    limit: int = 100,
    after: str | None = None,
    of_batches: bool = False,
) -> list[JobInfo]:
    """Up to `limit` jobs, newest first, older than the job `after`; those of batches, or all others."""
    found: list[JobInfo] = []
    own = (f":{tenant}:" if tenant is not None else "") + ("~" if of_batches else "")
    upper = f"({own}{after or _BEHIND_ALL}".encode()
    page = _PAGE if status is not None else min(limit, _PAGE)
    while len(found) < limit:
        names: Any = await connection.zrevrangebylex(keys.jobs, upper, f"[{own}g", 0, page)
        ids = [name.decode(errors="replace").removeprefix(own) for name in names]
        for info in await _read_infos(connection, ids):
            if status in (None, info.status) and tenant in (None, info.tenant):
                found.append(info)
        if len(ids) < page:
            break
        upper = b"(" + names[-1]
    return found[:limit]


async def read_submission(connection: redis.asyncio.Redis, job_id: str) -> Submission:
    """The request of a job that was given up. Raises JobNotFound, and InvalidRequest if it is not there any more."""
    fields = (
        *(JobHash.STATUS, JobHash.REQUEST, JobHash.TENANT, JobHash.SEED),
        *(JobHash.API_KEY, JobHash.NOTIFY, JobHash.TRACE),
    )
    row: Any = await connection.hmget(locate(job_id).job(job_id), fields)
    status, body, tenant, seed, key_id, notify, trace = row
    if status is None:
        raise not_found(job_id)
    if (state := as_status(status)) is None:
        raise damaged(job_id)
    if body is None or seed is None or not state.is_terminal:
        raise InvalidRequest(
            f"job {job_id} is {state.value} and was not given up with its request: `octavo jobs dead` lists those "
            "that were; submit any other again"
        )
    try:
        request = wire.decode_request(body).model_copy(update={"notify": notify == b"job"})
        key_id, trace = (key_id or b"").decode(), (trace or b"").decode(errors="replace")
        return Submission(request, tenant.decode(), int(seed), key_id, trace)
    except (AttributeError, ValueError):
        raise damaged(job_id) from None


async def read_content(connection: redis.asyncio.Redis, job_id: str) -> tuple[JobRequest | None, tuple[str, ...]]:
    """A job's request, None once it has ended, and the texts of its sequences so far; neither of one that was erased.
    Raises JobNotFound, MalformedMessage."""
    fields = (JobHash.STATUS, JobHash.ERASED, JobHash.REQUEST)
    row: Any = await connection.hmget(locate(job_id).job(job_id), fields)
    status, erased, body = row
    if status is None:
        raise not_found(job_id)
    if erased is not None:
        return None, ()
    _, result = await read_outcome(connection, job_id)
    texts: dict[int, str] = {}
    if result is not None:
        texts = {sequence.index: sequence.text for sequence in result.sequences}
    else:
        for event in await read_stream(connection, job_id):
            if event.chunk is not None:
                texts[event.chunk.index] = texts.get(event.chunk.index, "") + event.chunk.text
    asked = None if body is None else wire.decode_request(body)
    return asked, tuple(texts[index] for index in sorted(texts))


async def read_request(url: str, job_id: str) -> JobRequest:
    """Request of a job, as it was submitted. Raises JobNotFound, also if its end took the request with it, and
    ServerUnavailable."""
    with errors_of(url, lambda: None):
        async with connect(url) as connection, answered():
            values: Any = await connection.hmget(locate(job_id).job(job_id), (JobHash.STATUS, JobHash.REQUEST))
    status, body = values
    if status is None:
        raise not_found(job_id)
    if body is None:
        raise JobNotFound(f"job {job_id} has ended: its request was kept until then")
    return wire.decode_request(body)


async def _read_infos(connection: redis.asyncio.Redis, ids: Sequence[str]) -> list[JobInfo]:
    pipeline = connection.pipeline(transaction=False)
    known = []
    for job_id in ids:
        with suppress(JobNotFound):  # something else wrote into the index
            pipeline.hmget(locate(job_id).job(job_id), _FIELDS)
            known.append(job_id)
    rows = await pipeline.execute(raise_on_error=False)
    infos = []
    for job_id, values in zip(known, rows, strict=True):
        if not isinstance(values, Exception):
            with suppress(JobNotFound):  # the index may outlive an expired job; a damaged one must not fail the list
                infos.append(_info(job_id, values))
    return infos


def _info(job_id: str, values: Sequence[bytes | None]) -> JobInfo:
    """Raises JobNotFound, also for a damaged job."""
    row = dict(zip(_FIELDS, values, strict=True))
    if row[JobHash.STATUS] is None:
        raise not_found(job_id)
    try:
        return _parsed(job_id, row)
    except (KeyError, ValueError, OverflowError, MalformedMessage):
        raise damaged(job_id) from None


def _parsed(job_id: str, row: dict[JobHash, bytes | None]) -> JobInfo:
    text = {name: value.decode() for name, value in row.items() if value is not None and name not in _APART}
    error, metadata, usage, progress = (row[name] for name in _PACKED)
    return JobInfo(
        id=job_id,
        status=JobStatus(text[JobHash.STATUS]),
        model=text.get(JobHash.ASKED) or text[JobHash.MODEL],
        tenant=text[JobHash.TENANT],
        priority=text[JobHash.PRIORITY],
        created_at=int(text[JobHash.CREATED_MS]) / 1000,
        started_at=_seconds(text.get(JobHash.STARTED_MS)),
        finished_at=_seconds(text.get(JobHash.FINISHED_MS)),
        tokens=int(text[JobHash.TOKENS]),
        attempts=int(text[JobHash.ATTEMPTS]),
        crashes=int(text[JobHash.CRASHES]),
        worker=text.get(JobHash.WORKER),
        error=wire.decode_error(error) if error else None,
        metadata=wire.decode_metadata(metadata) if metadata else {},
        usage=wire.decode_usage(usage) if usage else None,
        progress=wire.decode_progress(progress) if progress else None,
        first_token_at=_seconds(text.get(JobHash.FIRST_TOKEN_MS)),
        history=attempts(row[JobHash.TRIES] or b""),
        not_before=_seconds(text.get(JobHash.NOT_BEFORE_MS)),
        trace_id=_trace_id(row[JobHash.TRACE] or b""),
    )


def _trace_id(trace: bytes) -> str | None:
    context = TraceContext.read(trace.decode(errors="replace"))
    return context.trace_id if context is not None else None


def _keeping(job_id: str, row: Sequence[bytes | None]) -> Keeping:
    retention, erased = row
    try:
        _, seconds, _ = map(int, (retention or b"").split())
    except ValueError:
        raise damaged(job_id) from None
    return Keeping(seconds, erased is not None)


def _seconds(milliseconds: str | None) -> float | None:
    return None if milliseconds is None else int(milliseconds) / 1000


def locate(job_id: str) -> Keys:
    """The cell of a job. Raises JobNotFound for what cannot be a job id."""
    try:
        return cell_of(job_id)
    except ValueError as error:
        raise JobNotFound(f"{error}: ids look like g00_01ARZ3NDEKTSV4RRFFQ69G5FAV") from None


def not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"no job {job_id}: it never existed or its result has expired")


def as_status(word: bytes | None) -> JobStatus | None:
    """None for what is no status."""
    try:
        return JobStatus((word or b"").decode())
    except ValueError:
        return None


def damaged(job_id: str) -> JobNotFound:
    return JobNotFound(
        f"what the server holds of job {job_id} was damaged by something else than octavo: submit it again",
        code="job_damaged",
    )
