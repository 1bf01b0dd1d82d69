"""The list of jobs that were given up. Its entries say why; what else is told of them is read of the jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from octavo.queue.connection import answered
from octavo.queue.jobs import locate
from octavo.queue.keys import JobHash, Keys
from octavo.terms.errors import JobNotFound
from octavo.terms.models import DeadLetter

_PAGE = 200
_FIELDS = (JobHash.MODEL, JobHash.TENANT)


@dataclass(frozen=True)
class Chosen:
    """Dead letters of one model, of one tenant and with one reason, each of which may be left out: any."""

    model: str | None = None
    tenant: str | None = None
    reason: str | None = None

    def admits(self, letter: DeadLetter) -> bool:
        """True if it is one of them."""
        told = ((self.model, letter.model), (self.tenant, letter.tenant), (self.reason, letter.reason))
        return all(wanted in (None, found) for wanted, found in told)


async def list_dead_letters(
    connection: redis.asyncio.Redis, keys: Keys, limit: int | None, chosen: Chosen | None = None
) -> list[DeadLetter]:
    """The latest `limit` jobs that were given up, newest first; None: all."""
    found: list[DeadLetter] = []
    async for _, letter in entries(connection, keys, chosen or Chosen()):
        found.append(letter)
        if len(found) == limit:
            break
    return found


async def entries(connection: redis.asyncio.Redis, keys: Keys, chosen: Chosen) -> AsyncIterator[tuple[str, DeadLetter]]:
    """Entries of the list, newest first, with what they tell."""
    end = "+"
    while True:
        async with answered():
            page: Any = await connection.xrevrange(keys.dead_letters, max=end, count=_PAGE)
            rows = await _rows(connection, [fields.get(b"id", b"").decode(errors="replace") for _, fields in page])
        for (entry, fields), row in zip(page, rows, strict=True):
            with suppress(KeyError, ValueError):  # something else wrote into the stream
                letter = _dead_letter(entry, fields, row)
                if chosen.admits(letter):
                    yield entry.decode(), letter
        if len(page) < _PAGE:
            return
        end = f"({page[-1][0].decode()}"


async def entries_by_job(connection: redis.asyncio.Redis, keys: Keys) -> dict[str, list[bytes]]:
    """Ids of the list's entries, by job."""
    async with answered():
        found: Any = await connection.xrange(keys.dead_letters)
    by_job: dict[str, list[bytes]] = {}
    for entry, fields in found:
        by_job.setdefault(fields.get(b"id", b"").decode(errors="replace"), []).append(entry)
    return by_job


async def remove_dead_letters(connection: redis.asyncio.Redis, keys: Keys, gone: Sequence[bytes]) -> None:
    """Take entries off the list."""
    async with answered():
        if gone:
            await connection.xdel(keys.dead_letters, *gone)


async def _rows(connection: redis.asyncio.Redis, ids: Sequence[str]) -> list[Any]:
    pipeline = connection.pipeline(transaction=False)
    rows: dict[str, Any] = {}
    for job_id in dict.fromkeys(ids):
        with suppress(JobNotFound):
            pipeline.hmget(locate(job_id).job(job_id), _FIELDS)
            rows[job_id] = None
    for job_id, values in zip(rows, await pipeline.execute(raise_on_error=False) if rows else [], strict=True):
        rows[job_id] = values if isinstance(values, list) else None
    return [rows.get(job_id) for job_id in ids]


def _dead_letter(entry: bytes, fields: dict[bytes, bytes], row: Any) -> DeadLetter:
    model, tenant = row or (None, None)
    return DeadLetter(
        job_id=fields[b"id"].decode(),
        reason=fields.get(b"why", b"dead_lettered").decode(),
        at=int(entry.partition(b"-")[0]) / 1000,
        worker=fields.get(b"wid", b"").decode() or None,
        attempts=int(fields.get(b"ep", 0)),
        model=None if model is None else model.decode(),
        tenant=None if tenant is None else tenant.decode(),
    )
