"""Connections to the server, with one set of options for everybody."""

from __future__ import annotations

import os
import re
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from octavo import local

DEFAULT_URL = "redis://localhost:6379"
_SOCKET_TIMEOUT_S = 10.0  # above every blocking command that octavo sends
_POOL = 16
_RETRIES = 2  # every script is idempotent, so a call with an unknown outcome may be sent again


def connect(url: str) -> redis.asyncio.Redis:
    """An asynchronous pool of at most 16 connections, whatever waits for one. Connects on first use."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=_POOL,
        timeout=_SOCKET_TIMEOUT_S,
        retry=AsyncRetry(ExponentialBackoff(0.5, 0.05), _RETRIES),
        **_options(),
    )
    return redis.asyncio.Redis.from_pool(pool)


def connect_sync(url: str) -> redis.Redis:
    """A synchronous pool of at most 16 connections. Connects on first use."""
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=_POOL,
        timeout=_SOCKET_TIMEOUT_S,
        retry=Retry(ExponentialBackoff(0.5, 0.05), _RETRIES),
        **_options(),
    )
    return redis.Redis.from_pool(pool)


def connect_listener(url: str) -> redis.asyncio.Redis:
    """For pub/sub: a lost connection is an error at once, because what was published meanwhile is lost too."""
    return redis.asyncio.Redis.from_url(url, retry=AsyncRetry(NoBackoff(), 0), **_options())


def default_url() -> str:
    """`REDIS_URL`, else the service that runs on this machine, else the usual address."""
    if url := os.environ.get("REDIS_URL"):
        return url
    service = local.running()
    return service.redis_url if service else DEFAULT_URL


def redacted(url: str) -> str:
    """The address without its credentials, fit for messages and logs."""
    return re.sub(r"//[^@/]*@", "//***@", url)


def _options() -> dict[str, Any]:
    return {
        "protocol": 2,
        "socket_timeout": _SOCKET_TIMEOUT_S,
        "socket_connect_timeout": 3.0,
        "socket_keepalive": True,
    }
