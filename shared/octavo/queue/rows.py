"""Hashes of a kind, many in one round trip, and the ids of a tenant's in the order of time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import redis.asyncio

from octavo.queue.connection import answered

_PAGE = 500

T = TypeVar("T")
Row = dict[str, bytes | None]


async def own_pages(
    connection: redis.asyncio.Redis, index: str, tenant: str, after: str | None, newest_first: bool, limit: int
) -> AsyncIterator[list[str]]:
    """Ids of a tenant in an index of all, in pages, beyond the id `after`."""
    own = f":{tenant}:"
    low, high = f"[{own}", f"({own}~"  # ids have letters, digits, - and _
    size = min(limit, _PAGE)
    while True:
        if after is not None:
            low, high = (low, f"({own}{after}") if newest_first else (f"({own}{after}", high)
        async with answered():
            if newest_first:
                names: Any = await connection.zrevrangebylex(index, high, low, 0, size)
            else:
                names = await connection.zrangebylex(index, low, high, 0, size)
        ids = [name.decode(errors="replace").removeprefix(own) for name in names]
        if ids:
            yield ids
        if len(ids) < size:
            return
        after = ids[-1]


async def rows(
    connection: redis.asyncio.Redis,
    ids: Sequence[str],
    key: Callable[[str], str],
    fields: Sequence[str],
    parse: Callable[[str, Row], T],
) -> list[T | None]:
    """The fields of many hashes, each as `parse` reads it; None for what is gone, or is damaged."""
    pipeline = connection.pipeline(transaction=False)
    for one in ids:
        pipeline.hmget(key(one), fields)
    async with answered():
        rows = await pipeline.execute(raise_on_error=False)
    return [_parsed(one, fields, values, parse) for one, values in zip(ids, rows, strict=True)]


def _parsed(one: str, fields: Sequence[str], values: Any, parse: Callable[[str, Row], T]) -> T | None:
    """None for what is gone, or is damaged."""
    if isinstance(values, redis.ResponseError):
        return None
    if isinstance(values, Exception):
        raise values
    row: Row = dict(zip(fields, values, strict=True))
    try:
        return parse(one, row) if row["tn"] is not None else None
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return None
