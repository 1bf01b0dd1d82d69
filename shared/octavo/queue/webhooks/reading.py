"""Queries of webhooks: nothing changes here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import redis.asyncio

from octavo.queue.batches.keys import is_id
from octavo.queue.connection import answered
from octavo.queue.rows import Row, own_pages, rows
from octavo.queue.webhooks.keys import ENDPOINT, WebhookKeys
from octavo.terms.webhooks import DeliveryInfo, EndpointInfo

_ENDPOINT_FIELDS = ("tn", "name", "url", "typ", "ct", "ut", "ver", "old", "off", "lost")
_DELIVERY_FIELDS = ("tn", "typ", "of", "at", "st", "n", "due", "ans")


class Backlog(NamedTuple):
    """Deliveries that wait, the seconds since the oldest of them was due, and how many ever failed to the end."""

    waiting: int
    oldest_s: float
    failed: int


async def read_endpoint(connection: redis.asyncio.Redis, keys: WebhookKeys, endpoint_id: str) -> EndpointInfo | None:
    """None: no such endpoint."""
    if not is_id(ENDPOINT, endpoint_id):
        return None
    (found,) = await read_endpoints(connection, keys, [endpoint_id])
    return found


async def read_endpoints(
    connection: redis.asyncio.Redis, keys: WebhookKeys, ids: Sequence[str]
) -> list[EndpointInfo | None]:
    """Endpoints by their ids, None for what is gone or damaged."""
    return await rows(connection, ids, keys.endpoint, _ENDPOINT_FIELDS, _endpoint)


async def list_endpoints(
    connection: redis.asyncio.Redis, keys: WebhookKeys, tenant: str, *, limit: int, after: str | None = None
) -> list[EndpointInfo]:
    """Endpoints of a tenant, newest first, older than the endpoint `after`."""
    found: list[EndpointInfo] = []
    async for page in own_pages(connection, keys.endpoints, tenant, after, True, limit):
        infos = await read_endpoints(connection, keys, page)
        found += [info for info in infos if info is not None and info.tenant == tenant]
        if len(found) >= limit:
            break
    return found[:limit]


async def list_deliveries(
    connection: redis.asyncio.Redis, keys: WebhookKeys, endpoint_id: str, *, limit: int
) -> list[DeliveryInfo]:
    """Deliveries of an endpoint: those that are tried now, those that wait, those that failed, the latest first."""
    pipeline = connection.pipeline(transaction=False)
    for name in (keys.tried(endpoint_id), keys.waiting(endpoint_id)):
        pipeline.zrange(name, 0, limit - 1)
    pipeline.zrange(keys.failed(endpoint_id), 0, limit - 1, desc=True)
    async with answered():
        found = await pipeline.execute()
    events = [event.decode(errors="replace") for part in found for event in part][:limit]
    names = [f"{endpoint_id}:{event}" for event in dict.fromkeys(events)]
    infos = await rows(connection, names, lambda name: f"{keys.prefix}:hd:{name}", _DELIVERY_FIELDS, _delivery)
    return [info for info in infos if info is not None]


async def read_backlog(connection: redis.asyncio.Redis, keys: WebhookKeys) -> Backlog:
    """Deliveries of all tenants that wait."""
    pipeline = connection.pipeline(transaction=False)
    pipeline.time()
    pipeline.zrange(keys.oldest, 0, 0, withscores=True)
    pipeline.hmget(keys.counts, ["waiting", "failed"])
    async with answered():
        (seconds, micros), oldest, counts = await pipeline.execute()
    now = seconds + micros / 1e6
    waiting, failed = (int(count) if count is not None and count.isdigit() else 0 for count in counts)
    return Backlog(waiting, max(0.0, now - oldest[0][1] / 1000) if oldest else 0.0, failed)


def _endpoint(endpoint_id: str, row: Row) -> EndpointInfo:
    text = _text(row)
    return EndpointInfo(
        endpoint_id, text["tn"], text["name"], text["url"], text["typ"].split(), int(text["ct"]) / 1000,
        int(text["ut"]) / 1000, int(text["ver"]), int(text.get("old", 0)) / 1000,
        int(text["off"]) / 1000 if "off" in text else None, int(text.get("lost", 0)),
    )  # fmt: skip


def _delivery(name: str, row: Row) -> DeliveryInfo:
    text = _text(row)
    endpoint_id, _, event_id = name.partition(":")
    return DeliveryInfo(
        endpoint_id, event_id, text["typ"], text["of"], int(text["at"]) / 1000, int(text["n"]), text["st"] == "failed",
        int(text["due"]) / 1000 if "due" in text else None, text.get("ans"),
    )  # fmt: skip


def _text(row: Row) -> dict[str, Any]:
    return {name: value.decode() for name, value in row.items() if value is not None}
