"""Endpoints to which deliveries fail: read for operators, of all tenants."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio

from octavo.queue.connection import answered
from octavo.queue.webhooks.keys import WebhookKeys
from octavo.queue.webhooks.reading import read_endpoints
from octavo.terms.fleet import FailingEndpoint
from octavo.terms.webhooks import EndpointInfo


async def list_failing(connection: redis.asyncio.Redis, keys: WebhookKeys, limit: int) -> list[FailingEndpoint]:
    """At most `limit` endpoints of which something has failed to the end or waits for another try, that of the latest
    failure first. Damaged ones are left out."""
    async with answered():
        found: Any = await connection.zrange(keys.failing, 0, limit - 1, desc=True, withscores=True)
        if not found:
            return []
    latest = {name.decode(errors="replace"): at / 1000 for name, at in found}
    infos = [info for info in await read_endpoints(connection, keys, list(latest)) if info is not None]
    pipeline, now_ms = connection.pipeline(transaction=False), round(time.time() * 1000)
    for info in infos:
        pipeline.zcard(keys.failed(info.id))
        pipeline.zcard(keys.waiting(info.id))
        pipeline.zcard(keys.tried(info.id))
        pipeline.zrange(keys.waiting(info.id), now_ms, "+inf", byscore=True, offset=0, num=1, withscores=True)
        pipeline.zrange(keys.failed(info.id), 0, 0, desc=True)
    async with answered():
        read = await pipeline.execute(raise_on_error=False)
    rows = [(info, read[place * 5 : place * 5 + 5]) for place, info in enumerate(infos)]
    whole = [(info, row) for info, row in rows if not any(isinstance(value, redis.ResponseError) for value in row)]
    answers = await _answers(connection, keys, whole)
    failing = [_failing(info, row, latest[info.id], answers[info.id]) for info, row in whole]
    return [one for one in failing if one.failed or one.waiting]


async def _answers(
    connection: redis.asyncio.Redis, keys: WebhookKeys, rows: list[tuple[EndpointInfo, list[Any]]]
) -> dict[str, str | None]:
    """The last answer of each: that of the delivery that is tried again next, else of the one given up last."""
    pipeline = connection.pipeline(transaction=False)
    for info, (*_, later, failed) in rows:
        event = later[0][0] if later else failed[0] if failed else b""
        pipeline.hget(keys.delivery(info.id, event.decode(errors="replace")), "ans")
    async with answered():
        found = await pipeline.execute(raise_on_error=False)
    return {
        info.id: answer.decode(errors="replace") if isinstance(answer, bytes) else None
        for (info, _), answer in zip(rows, found, strict=True)
    }


def _failing(info: EndpointInfo, row: list[Any], failed_at: float, answer: str | None) -> FailingEndpoint:
    failed, waiting, tried, later, _ = row
    return FailingEndpoint(
        id=info.id,
        tenant=info.tenant,
        name=info.name,
        address=address_of(info.url),
        failed=failed,
        waiting=waiting + tried,
        failed_at=failed_at,
        next_try_at=later[0][1] / 1000 if later else None,
        last_answer=answer,
        disabled_at=info.disabled_at,
    )


def address_of(url: str) -> str:
    """Scheme, host and port. Path, query and user of an address may be its secret, and are its tenant's own."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
