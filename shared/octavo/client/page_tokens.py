"""Tokens of pages that were loaded: what changes something through a page's button names one."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import redis.asyncio

from octavo.queue.connection import answered
from octavo.queue.keys import Keys

_KEPT_S = 7 * 86400


async def new_page_token(connection: redis.asyncio.Redis, keys: Keys, tenant: str) -> str:
    """A random one, for the page of this tenant alone. All gateways of the server know it."""
    token = secrets.token_urlsafe(24)
    async with answered():
        await connection.set(_name(keys, token), tenant, ex=_KEPT_S)
    return token


async def is_page_token(connection: redis.asyncio.Redis, keys: Keys, token: str, tenant: str) -> bool:
    """True if it was given to a page of this tenant."""
    async with answered():
        found: Any = await connection.get(_name(keys, token))
    return bool(found == tenant.encode())


def _name(keys: Keys, token: str) -> str:
    return keys.page(hashlib.sha256(token.encode()).hexdigest())
