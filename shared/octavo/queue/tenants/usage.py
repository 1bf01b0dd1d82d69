"""The account of what tenants use: rows of sums, how they are read, and how they are folded.

A row counts the jobs that ended in its minute, hour or day (UTC), of one tenant, key and model. Minutes are kept for
two hours, hours for eight days, days for 400.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, TypeVar

import redis.asyncio

from octavo.queue.calls import Call, Watch, run_many
from octavo.queue.connection import answered
from octavo.queue.keys import Keys

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
KEPT_S = {MINUTE_S: 2 * HOUR_S, HOUR_S: 8 * DAY_S, DAY_S: 400 * DAY_S}
"""Seconds for which rows of a width are kept."""

_SUMS = struct.Struct("<8d")
_FOLDED_AT_ONCE = 500
_TENANTS_AT_ONCE = 64
_DAYS_OF_MONTH = 30
_UNITS: dict[bytes, tuple[int, int]] = {
    b"m": (HOUR_S, MINUTE_S),
    b"h": (DAY_S, HOUR_S),
    b"d": (_DAYS_OF_MONTH * DAY_S, DAY_S),
}
K = TypeVar("K")


@dataclass(frozen=True)
class Sums:
    """Tokens of prompts, those of them from the cache, tokens of answers, drafted tokens; jobs that ended, those of
    them that failed or expired; ms that they waited, and from their first claim to their end."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    requests: int = 0
    failures: int = 0
    waited_ms: int = 0
    computed_ms: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Row:
    """Sums of one tenant, key (empty: none), and model, of batches or not, from `start` on, seconds since the epoch."""

    start: int
    tenant: str
    api_key: str
    model: str
    of_batches: bool
    sums: Sums


@dataclass(frozen=True)
class UsageCell:
    """All calls about the account on one cell."""

    keys: Keys = field(default_factory=Keys)
    watch: Watch | None = None

    def fold(self) -> Call[int]:
        """Fold some of what is due. 0 if nothing was left; any number of processes may do it at once."""
        return Call("usage_fold", (self.keys.prefix,), (_FOLDED_AT_ONCE,), int, "", self.watch)

    def read(self, tenant: str, start: float, end: float) -> Call[list[Row]]:
        """Rows of a tenant that begin between two times in seconds, as fine as they are kept."""
        first, last = int(start // HOUR_S), int(max(start, end - 1) // HOUR_S)

        def parse(reply: list[Any]) -> list[Row]:
            return [row for part in reply for row in _rows(tenant, *part) if start <= row.start < end]

        return Call("usage_read", (self.keys.prefix,), (tenant, first, last), parse, tenant, self.watch)


def _rows(tenant: str, kind: bytes, number: int, fields: Sequence[bytes]) -> Iterator[Row]:
    """Rows of one hash. What something else has written there is left out."""
    span_s, unit_s = _UNITS[kind]
    for name, stored in zip(fields[::2], fields[1::2], strict=True):
        try:
            unit, of_batches, api_key, model = name.decode().split(" ", 3)
            sums = Sums(*map(int, _SUMS.unpack(stored)))
            start = number * span_s + int(unit) * unit_s
        except (ValueError, OverflowError, struct.error):
            continue
        yield Row(start, tenant, "" if api_key == "-" else api_key, model, of_batches == "1", sums)


async def tenants_with_usage(connection: redis.asyncio.Redis, keys: Keys, since: float) -> list[str]:
    """Tenants that used anything since a time, by name."""
    async with answered():
        names: Any = await connection.zrange(keys.usage, int(since // HOUR_S), "+inf", byscore=True)
    return sorted(name.decode(errors="replace") for name in names)


async def read_usage(
    connection: redis.asyncio.Redis, cell: UsageCell, tenants: Sequence[str], start: float, end: float
) -> list[Row]:
    """Rows of several tenants."""
    rows: list[Row] = []
    for at in range(0, len(tenants), _TENANTS_AT_ONCE):
        calls = [cell.read(tenant, start, end) for tenant in tenants[at : at + _TENANTS_AT_ONCE]]
        for found in await run_many(connection, calls):
            if isinstance(found, Exception):
                raise found
            rows += found
    return rows


def grouped(rows: Iterable[Row], by: Callable[[Row], K]) -> dict[K, Sums]:
    """Sums of rows that have the same key."""
    sums: dict[K, Sums] = {}
    for row in rows:
        key = by(row)
        sums[key] = sums.get(key, Sums()) + row.sums
    return sums
