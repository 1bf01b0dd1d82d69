"""Queries of API keys, service accounts and projects: nothing changes here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import redis
import redis.asyncio

from octavo.queue.connection import answered
from octavo.queue.tenants.keys import KEY_FIELDS, Account, ApiKey, Project, Row, read_row, text_row
from octavo.queue.tenants.names import ACCOUNT_ID, TenantKeys, is_id
from octavo.terms.access.api_keys import KEY_ID

_ACCOUNT_FIELDS = ("tn", "name", "ct")
_PROJECT_FIELDS = ("name", "ct", "arch")
_PAGE = 500

T = TypeVar("T")


async def read_keys(connection: redis.asyncio.Redis, keys: TenantKeys, ids: Sequence[str]) -> list[ApiKey]:
    """API keys by id, revoked ones too; ids of none are left out."""
    known = [one for one in ids if is_id(KEY_ID, one)]
    return await _rows(connection, [(one, keys.api_key(one)) for one in known], KEY_FIELDS, read_row)


async def list_keys(
    connection: redis.asyncio.Redis, keys: TenantKeys, tenant: str | None, *, limit: int, after: str | None = None
) -> list[ApiKey]:
    """API keys of a tenant, or of all, by time, beyond the key `after`; revoked ones are left out."""
    own = KEY_ID if tenant is None else f":{tenant}:{KEY_ID}"
    found: list[ApiKey] = []
    while len(found) < limit:
        ids = await _members(connection, keys.key_index, own, KEY_ID, after, _PAGE)
        page = await read_keys(connection, keys, ids)
        found += [key for key in page if key.revoked_at is None and tenant in (None, key.tenant)]
        if len(ids) < _PAGE:
            break
        after = ids[-1]
    return found[:limit]


async def read_accounts(connection: redis.asyncio.Redis, keys: TenantKeys, ids: Sequence[str]) -> list[Account]:
    """Service accounts by id; ids of none are left out."""
    known = [one for one in ids if is_id(ACCOUNT_ID, one)]
    return await _rows(connection, [(one, keys.account(one)) for one in known], _ACCOUNT_FIELDS, _account)


async def list_accounts(
    connection: redis.asyncio.Redis, keys: TenantKeys, tenant: str, *, limit: int, after: str | None = None
) -> list[Account]:
    """Service accounts of a tenant by time, beyond the account `after`."""
    own = f":{tenant}:{ACCOUNT_ID}"
    ids = await _members(connection, keys.account_index, own, ACCOUNT_ID, after, limit)
    return [account for account in await read_accounts(connection, keys, ids) if account.tenant == tenant]


async def read_projects(connection: redis.asyncio.Redis, keys: TenantKeys, ids: Sequence[str]) -> list[Project]:
    """Projects by id; ids of none are left out."""
    return await _rows(connection, [(one, keys.project(one)) for one in ids], _PROJECT_FIELDS, _project)


async def list_projects(
    connection: redis.asyncio.Redis, keys: TenantKeys, *, limit: int, after: str | None = None, archived: bool = False
) -> list[Project]:
    """Projects by the time at which they became one, beyond the project `after`. `archived`: those, too."""
    start = 0
    if after is not None:
        async with answered():
            rank: Any = await connection.zrank(keys.project_index, after)
        start = 0 if rank is None else int(rank) + 1
    found: list[Project] = []
    while len(found) < limit:
        async with answered():
            names: Any = await connection.zrange(keys.project_index, start, start + _PAGE - 1)
        page = await read_projects(connection, keys, [name.decode(errors="replace") for name in names])
        found += [project for project in page if archived or project.archived_at is None]
        if len(names) < _PAGE:
            break
        start += _PAGE
    return found[:limit]


async def _members(
    connection: redis.asyncio.Redis, index: str, own: str, kind: str, after: str | None, count: int
) -> list[str]:
    low = f"[{own}" if after is None else f"({own}{after.removeprefix(kind)}"
    async with answered():
        names: Any = await connection.zrangebylex(index, low, f"({own}~", 0, count)
    return [kind + name.decode(errors="replace").removeprefix(own) for name in names]


async def _rows(
    connection: redis.asyncio.Redis,
    places: Sequence[tuple[str, str]],
    fields: tuple[str, ...],
    parse: Callable[[str, Row], T],
) -> list[T]:
    """Rows of hashes, without those that are gone or damaged."""
    if not places:
        return []
    pipeline = connection.pipeline(transaction=False)
    for _, name in places:
        pipeline.hmget(name, fields)
    async with answered():
        replies = await pipeline.execute(raise_on_error=False)
    found = []
    for (one, _), values in zip(places, replies, strict=True):
        if isinstance(values, Exception) and not isinstance(values, redis.ResponseError):
            raise values
        try:
            found.append(parse(one, text_row(fields, values)))
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError):
            continue
    return found


def _account(account_id: str, row: Row) -> Account:
    return Account(account_id, row["tn"], row["name"], int(row["ct"]) / 1000)


def _project(tenant: str, row: Row) -> Project:
    archived = int(row["arch"]) / 1000 if "arch" in row else None
    return Project(tenant, row["name"], int(row["ct"]) / 1000, archived)
