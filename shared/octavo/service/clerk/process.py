"""The process of a clerk. It ends with SIGTERM or SIGINT, and with the gateway that started it."""

from __future__ import annotations

import asyncio
import logging
import signal

from octavo.client.batches import BatchClient
from octavo.service.clerk.clerk import Clerk
from octavo.service.clerk.desk import Desk
from octavo.service.clerk.settings import ClerkSettings
from octavo.service.storage import open_storage
from octavo.terms.errors import OctavoError
from octavo.terms.logs import configure_logging

log = logging.getLogger(__name__)


def run_clerk(settings: ClerkSettings) -> None:
    """Work until a signal. Raises OctavoError without a storage, OSError for a port that is taken."""
    if settings.files is None:
        raise OctavoError("a clerk needs the files of the gateways: set OCTAVO_FILES to the same folder or address")
    configure_logging("octavo", settings.log_level, settings.log_format)
    asyncio.run(_serve(settings, settings.files))


async def _serve(settings: ClerkSettings, place: str) -> None:
    async with BatchClient(settings.redis_url) as client:
        desk = Desk(client, open_storage(place), settings.limits)
        if settings.metrics_port:
            desk.metrics.serve(settings.metrics_host, settings.metrics_port)
        task = asyncio.create_task(Clerk(desk, settings.clerk_lease).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: task.cancelling() or task.cancel())  # a second one changes nothing
        log.info("looking for batches")
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        log.info("gave its batches back")
