"""Frees the jobs of silent workers. Every gateway looks for them about once a second; any number may do so at once."""

from __future__ import annotations

import asyncio
import logging
import random

from octavo import AsyncClient
from octavo.terms.errors import OctavoError

INTERVAL_S = 0.8

log = logging.getLogger(__name__)


async def reap_forever(client: AsyncClient) -> None:
    """Until cancelled. While the server is away it only tries again."""
    reachable = True
    chance = random.Random()  # of its own: a seed of the module's generator stays in effect
    while True:
        try:
            await client.reap()
            if not reachable:
                log.info("the Redis server answers again")
            reachable = True
        except OctavoError as error:
            if reachable:
                log.warning("%s; trying again", error)
            reachable = False
        await asyncio.sleep(INTERVAL_S * chance.uniform(0.8, 1.2))  # gateways started together drift apart
