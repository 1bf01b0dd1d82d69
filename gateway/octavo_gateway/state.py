"""What one gateway process holds: its client, its keys, its counters, its background tasks. No job lives here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from octavo import AsyncClient
from octavo_gateway.auth import Keyring
from octavo_gateway.metrics import Metrics
from octavo_gateway.settings import GatewaySettings

log = logging.getLogger(__name__)


class Gateway:
    """Shared by all requests of one process. `draining` is set once the process is to stop."""

    def __init__(self, settings: GatewaySettings, keyring: Keyring, client: AsyncClient, metrics: Metrics) -> None:
        self.settings = settings
        self.keyring = keyring
        self.client = client
        self.metrics = metrics
        self.draining = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run in the background; `close` cancels it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.debug("a background task ended with %s", type(error).__name__)

    async def close(self) -> None:
        """Cancel what still runs, let it clean up, disconnect."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        await self.client.close()
