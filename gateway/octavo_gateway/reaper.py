"""Every gateway looks about once a second for jobs whose owner went silent. Any number may do so at once."""

from __future__ import annotations

import asyncio
import logging
import random

import redis.asyncio
from redis.exceptions import RedisError

from octavo.protocol import Cell, run
from octavo_gateway.metrics import Metrics

INTERVAL_S = 0.8

log = logging.getLogger(__name__)


async def reap_forever(connection: redis.asyncio.Redis, metrics: Metrics) -> None:
    """Until cancelled. While the server is away it only tries again."""
    cell = Cell()
    reachable = True
    while True:
        try:
            metrics.jobs_reclaimed.inc(await run(connection, cell.reap()))
            if not reachable:
                log.info("the Redis server answers again")
            reachable = True
        except (RedisError, OSError) as error:
            if reachable:
                log.warning("the Redis server does not answer (%s); trying again", type(error).__name__)
            reachable = False
        await asyncio.sleep(INTERVAL_S * random.uniform(0.8, 1.2))  # gateways started together drift apart
