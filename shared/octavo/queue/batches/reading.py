"""Queries of files and batches: nothing changes here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import redis.asyncio

from octavo.queue.batches.calls import Member, Part
from octavo.queue.batches.keys import BATCH, FILE, BatchKeys, is_id
from octavo.queue.connection import answered
from octavo.queue.rows import Row, own_pages, rows
from octavo.terms.batches import BatchInfo, BatchStatus, BatchUsage, FileInfo, LineError

_FILE_FIELDS = ("tn", "name", "purp", "bytes", "ct", "exp", "sha")
_REACHED = tuple(status for status in BatchStatus if status is not BatchStatus.VALIDATING)
_BATCH_FIELDS = (
    *("tn", "st", "ep", "in", "win", "ct", "dl", "model", "total", "cur", "done", "failed"),
    *("u_in", "u_cached", "u_out", "u_reason", "meta", "oexp", "out", "err", "errs", "key", "tp"),
    *(f"{status}_at" for status in _REACHED),
)


async def read_file(connection: redis.asyncio.Redis, keys: BatchKeys, file_id: str) -> FileInfo | None:
    """None: no such file."""
    if not is_id(FILE, file_id):
        return None
    (found,) = await rows(connection, [file_id], keys.file, _FILE_FIELDS, _file)
    return found


async def read_batch(connection: redis.asyncio.Redis, keys: BatchKeys, batch_id: str) -> BatchInfo | None:
    """None: no such batch."""
    if not is_id(BATCH, batch_id):
        return None
    (found,) = await rows(connection, [batch_id], keys.batch, _BATCH_FIELDS, _batch)
    return found


async def list_files(
    connection: redis.asyncio.Redis,
    keys: BatchKeys,
    tenant: str,
    *,
    limit: int,
    after: str | None = None,
    newest_first: bool = True,
    purpose: str | None = None,
) -> list[FileInfo]:
    """Files of a tenant by time, beyond the file `after`."""

    def wanted(info: FileInfo) -> bool:
        return info.tenant == tenant and purpose in (None, info.purpose)

    async def infos(ids: Sequence[str]) -> list[FileInfo | None]:
        return await rows(connection, ids, keys.file, _FILE_FIELDS, _file)

    found: list[FileInfo] = []
    async for page in own_pages(connection, keys.files, tenant, after, newest_first, limit):
        found += [info for info in await infos(page) if info is not None and wanted(info)]
        if len(found) >= limit:
            break
    return found[:limit]


async def list_batches(
    connection: redis.asyncio.Redis, keys: BatchKeys, tenant: str, *, limit: int, after: str | None = None
) -> list[BatchInfo]:
    """Batches of a tenant, newest first, older than the batch `after`."""
    found: list[BatchInfo] = []
    async for page in own_pages(connection, keys.batches, tenant, after, True, limit):
        infos = await rows(connection, page, keys.batch, _BATCH_FIELDS, _batch)
        found += [info for info in infos if info is not None and info.tenant == tenant]
        if len(found) >= limit:
            break
    return found[:limit]


async def list_open(connection: redis.asyncio.Redis, keys: BatchKeys, limit: int) -> list[BatchInfo]:
    """Batches of all tenants that have not ended, those first whose turn or lease's end comes first."""
    pipeline = connection.pipeline(transaction=False)
    for name in (keys.leases, keys.due):
        pipeline.zrange(name, 0, limit - 1)
    async with answered():
        names = [name.decode(errors="replace") for found in await pipeline.execute() for name in found]
    ids = [name for name in dict.fromkeys(names) if is_id(BATCH, name)][:limit]
    infos = await rows(connection, ids, keys.batch, _BATCH_FIELDS, _batch)
    return [info for info in infos if info is not None and not info.status.is_terminal]


async def read_members(connection: redis.asyncio.Redis, name: str, count: int) -> list[Member]:
    """The first members of a batch's open or ended jobs, by place."""
    async with answered():
        found: Any = await connection.zrange(name, 0, count - 1)
    return [member for text in found if (member := Member.of(text)) is not None]


async def read_beyond(connection: redis.asyncio.Redis, keys: BatchKeys, batch_id: str, place: int) -> list[Member]:
    """Jobs of a batch, open or ended, from a place on."""
    pipeline = connection.pipeline(transaction=False)
    for name in (keys.open_jobs(batch_id), keys.ended_jobs(batch_id)):
        pipeline.zrangebyscore(name, place, "+inf")
    async with answered():
        found = await pipeline.execute()
    return [member for texts in found for text in texts if (member := Member.of(text)) is not None]


async def read_parts(connection: redis.asyncio.Redis, keys: BatchKeys, batch_id: str) -> list[Part]:
    """The parts that count. Raises ValueError for what is none."""
    async with answered():
        found: Any = await connection.lrange(keys.parts(batch_id), 0, -1)
    return [Part.decode(text) for text in found]


async def read_load(connection: redis.asyncio.Redis, keys: BatchKeys, batch_id: str) -> tuple[int, int, int]:
    """How many jobs of a batch are open, how many have ended, and how many parts count."""
    pipeline = connection.pipeline(transaction=False)
    pipeline.zcard(keys.open_jobs(batch_id))
    pipeline.zcard(keys.ended_jobs(batch_id))
    pipeline.llen(keys.parts(batch_id))
    async with answered():
        is_open, ended, parts = await pipeline.execute()
    return is_open, ended, parts


async def read_expired(connection: redis.asyncio.Redis, keys: BatchKeys, now: float, count: int) -> list[str]:
    """Files whose time is over."""
    async with answered():
        found: Any = await connection.zrangebyscore(keys.expiries, "-inf", int(now * 1000), 0, count)
    return [text.decode(errors="replace") for text in found]


def _file(file_id: str, row: Row) -> FileInfo:
    text = {name: value.decode() for name, value in row.items() if value is not None}
    return FileInfo(
        file_id, text["tn"], text["name"], text["purp"], int(text["bytes"]), int(text["ct"]) / 1000,
        int(text["exp"]) / 1000 if "exp" in text else None, text.get("sha", ""),
    )  # fmt: skip


def _batch(batch_id: str, row: Row) -> BatchInfo:
    text = {name: value.decode() for name, value in row.items() if value is not None}

    def number(name: str) -> int:
        return int(text.get(name, 0))

    return BatchInfo(
        id=batch_id,
        tenant=text["tn"],
        status=BatchStatus(text["st"]),
        endpoint=text["ep"],
        input_file_id=text["in"],
        window=text["win"],
        created_at=number("ct") / 1000,
        expires_at=number("dl") / 1000,
        model=text.get("model"),
        total=number("total"),
        cursor=number("cur"),
        completed=number("done"),
        failed=number("failed"),
        usage=BatchUsage(number("u_in"), number("u_cached"), number("u_out"), number("u_reason")),
        metadata=msgspec.json.decode(text["meta"], type=dict[str, str]) if "meta" in text else None,
        output_expires_s=number("oexp") if "oexp" in text else None,
        output_file_id=text.get("out"),
        error_file_id=text.get("err"),
        errors=msgspec.json.decode(text["errs"], type=list[LineError]) if "errs" in text else (),
        key_id=text.get("key", ""),
        trace=text.get("tp", ""),
        reached={status: number(f"{status}_at") / 1000 for status in _REACHED if f"{status}_at" in text},
    )
