"""The latest job of a chat. A client that comes back knows its chat, not the job that answers it."""

from __future__ import annotations

from typing import Any

import redis.asyncio

from octavo.queue.keys import Keys


async def store_chat(
    connection: redis.asyncio.Redis, keys: Keys, tenant: str, chat_id: str, job_id: str, ttl_s: int
) -> None:
    """From now on `job_id` is the job of the tenant's chat."""
    await connection.set(keys.chat(tenant, chat_id), job_id, ex=ttl_s)


async def read_chat(connection: redis.asyncio.Redis, keys: Keys, tenant: str, chat_id: str) -> str | None:
    """None for a chat without a job, or whose job ended long ago."""
    job_id: Any = await connection.get(keys.chat(tenant, chat_id))
    return None if job_id is None else job_id.decode(errors="replace")
