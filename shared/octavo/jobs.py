"""What the server knows about jobs, read as it is: no state changes here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import redis.asyncio

from octavo import wire
from octavo.errors import InvalidRequest, JobNotFound
from octavo.keys import Keys, cell_of
from octavo.models import DeadLetter, JobInfo, JobRequest, JobStatus, Result
from octavo.streams import assemble, read_stream, result_of_events

_ALWAYS = ("st", "mdl", "tn", "cls", "ct", "n", "ep", "crashes")
_PACKED = ("err", "meta", "use", "pg")
_FIELDS = (*_ALWAYS, "sts", "ft", "wid", *_PACKED)
_PAGE = 200


@dataclass(frozen=True)
class Submission:
    """What a job was made from."""

    request: JobRequest
    tenant: str
    seed: int


async def read_info(connection: redis.asyncio.Redis, job_id: str) -> JobInfo:
    """Raises JobNotFound."""
    values: Any = await connection.hmget(locate(job_id).job(job_id), _FIELDS)
    return _info(job_id, values) or _raise_not_found(job_id)


async def read_result(connection: redis.asyncio.Redis, job_id: str) -> Result | None:
    """The result of an ended job, None while it has not ended. Raises JobNotFound."""
    keys = locate(job_id)
    state: Any = await connection.hmget(keys.job(job_id), ("st", "mdl"))
    status, model = state
    if status is None:
        _raise_not_found(job_id)
    if not JobStatus(status.decode()).is_terminal:
        return None
    data: Any = await connection.get(keys.result(job_id))
    if data is not None:
        return assemble(job_id, model.decode(), *wire.decode_result(data))
    events = await read_stream(connection, job_id)  # it ended without an owner, who would have made a result
    if not events:
        _raise_not_found(job_id)
    return result_of_events(job_id, model.decode(), events)


async def list_jobs(
    connection: redis.asyncio.Redis,
    keys: Keys,
    *,
    status: JobStatus | None = None,
    tenant: str | None = None,
    limit: int = 100,
    after: str | None = None,
) -> list[JobInfo]:
    """Up to `limit` jobs, newest first, older than the job `after`."""
    found: list[JobInfo] = []
    upper = f"({after}" if after else "+"
    while len(found) < limit:
        names: Any = await connection.zrevrangebylex(keys.jobs, upper, "-", 0, _PAGE)
        ids = [name.decode() for name in names]
        for info in await _read_infos(connection, ids):
            if status in (None, info.status) and tenant in (None, info.tenant):
                found.append(info)
        if len(ids) < _PAGE:
            break
        upper = f"({ids[-1]}"
    return found[:limit]


async def list_dead_letters(connection: redis.asyncio.Redis, keys: Keys, limit: int) -> list[DeadLetter]:
    """The latest `limit` jobs that were given up, newest first."""
    entries: Any = await connection.xrevrange(keys.dead_letters, count=limit)
    return [_dead_letter(entry_id, fields) for entry_id, fields in entries]


def _dead_letter(entry_id: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
    return DeadLetter(
        job_id=fields[b"id"].decode(),
        reason=fields.get(b"why", b"dead_lettered").decode(),
        at=int(entry_id.partition(b"-")[0]) / 1000,
        worker=fields.get(b"wid", b"").decode() or None,
        attempts=int(fields.get(b"ep", 0)),
    )


async def read_submission(connection: redis.asyncio.Redis, job_id: str) -> Submission:
    """The request of a job that was given up. Raises JobNotFound, and InvalidRequest if it is not there any more."""
    row: Any = await connection.hmget(locate(job_id).job(job_id), ("st", "body", "tn", "seed"))
    status, body, tenant, seed = row
    if status is None:
        _raise_not_found(job_id)
    if body is None or seed is None or not JobStatus(status.decode()).is_terminal:
        raise InvalidRequest(
            f"job {job_id} is {status.decode()} and was not given up with its request: `octavo jobs dead` lists those "
            "that were; submit any other again"
        )
    return Submission(wire.decode_request(body), tenant.decode(), int(seed))


async def remove_dead_letters(connection: redis.asyncio.Redis, keys: Keys, job_id: str) -> None:
    """Take a job off the list."""
    entries: Any = await connection.xrange(keys.dead_letters)
    if gone := [entry_id for entry_id, fields in entries if fields.get(b"id") == job_id.encode()]:
        await connection.xdel(keys.dead_letters, *gone)


async def _read_infos(connection: redis.asyncio.Redis, ids: Sequence[str]) -> list[JobInfo]:
    pipeline = connection.pipeline(transaction=False)
    for job_id in ids:
        pipeline.hmget(locate(job_id).job(job_id), _FIELDS)
    rows = await pipeline.execute(raise_on_error=False)
    infos = (_info(job_id, values) for job_id, values in zip(ids, rows, strict=True) if _is_readable(values))
    return [info for info in infos if info is not None]  # the index may outlive an expired job by a moment


def _is_readable(values: Any) -> bool:
    """Not so for a damaged job, which the reaper ends: nobody else's list is to fail with it."""
    return not isinstance(values, Exception) and (values[0] is None or None not in values[: len(_ALWAYS)])


def _info(job_id: str, values: Sequence[bytes | None]) -> JobInfo | None:
    row = dict(zip(_FIELDS, values, strict=True))
    if row["st"] is None:
        return None
    text = {name: value.decode() for name, value in row.items() if value is not None and name not in _PACKED}
    return JobInfo(
        id=job_id,
        status=JobStatus(text["st"]),
        model=text["mdl"],
        tenant=text["tn"],
        priority=text["cls"],
        created_at=int(text["ct"]) / 1000,
        started_at=int(text["sts"]) / 1000 if "sts" in text else None,
        finished_at=int(text["ft"]) / 1000 if "ft" in text else None,
        tokens=int(text["n"]),
        attempts=int(text["ep"]),
        crashes=int(text["crashes"]),
        worker=text.get("wid"),
        error=wire.decode_error(row["err"]) if row["err"] else None,
        metadata=wire.decode_metadata(row["meta"]) if row["meta"] else {},
        usage=wire.decode_usage(row["use"]) if row["use"] else None,
        progress=wire.decode_progress(row["pg"]) if row["pg"] else None,
    )


def locate(job_id: str) -> Keys:
    """The cell of a job. Raises JobNotFound for what cannot be a job id."""
    try:
        return cell_of(job_id)
    except ValueError as error:
        raise JobNotFound(f"{error}: ids look like g00_01ARZ3NDEKTSV4RRFFQ69G5FAV") from None


def _raise_not_found(job_id: str) -> NoReturn:
    raise JobNotFound(f"no job {job_id}: it never existed or its result has expired")
