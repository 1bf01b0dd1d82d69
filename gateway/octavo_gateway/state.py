"""State of one gateway process: its client, its keys, its counters, its background tasks. No job lives here."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Any

from octavo import AsyncClient
from octavo.client.batches import BatchClient
from octavo.client.keys import KeyClient
from octavo.client.webhooks import WebhookClient
from octavo.terms.access.api_keys import KeyDigests
from octavo.terms.access.read_tokens import ReadTokens
from octavo.terms.access.secret import Secret
from octavo.terms.errors import OctavoError
from octavo.terms.tracing.context import exemplar_of
from octavo_gateway.auth.authentication import Authentication
from octavo_gateway.auth.cache import KeyCache
from octavo_gateway.auth.keyring import Keyring
from octavo_gateway.cards import Cards
from octavo_gateway.door import Door
from octavo_gateway.files.kept import Kept
from octavo_gateway.live.observer import Observer
from octavo_gateway.settings import GatewaySettings
from octavo_gateway.status.metrics import Metrics
from octavo_gateway.status.tenants import TenantFigures
from octavo_gateway.webhooks.endpoints import Endpoints

if TYPE_CHECKING:
    from octavo.service.tracing.tracing import Tracing

_PROBE_S = 1.0
_LOADED_AT_ONCE = 2  # results, each of which may have megabytes

log = logging.getLogger(__name__)


class Writes:
    """Check that the server takes writes. It is asked once a second at most, however many ask here."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._asked_at = -math.inf
        self._refusal: OctavoError | None = None

    async def check(self) -> None:
        """Raises OctavoError: why nothing can be written."""
        if monotonic() - self._asked_at >= _PROBE_S:
            try:
                await self._client.check_writable()
                self._refusal = None
            except OctavoError as error:
                self._refusal = error
            self._asked_at = monotonic()
        if self._refusal is not None:
            raise self._refusal


class Gateway:
    """Shared by all requests of one process. `reader` is the thread for large bodies. `draining` is set once the
    process is to stop."""

    def __init__(
        self,
        settings: GatewaySettings,
        keyring: Keyring,
        secret: Secret | None,
        client: AsyncClient,
        metrics: Metrics,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings = settings
        self.keyring = keyring
        self.read_tokens = None if secret is None else ReadTokens(secret)
        self.client = client
        self.metrics = metrics
        self.tracing = tracing
        digests = None if secret is None else KeyDigests(secret)
        self.keys = KeyClient(settings.redis_url, digests, watch=metrics.saw)
        self.key_cache = None if digests is None else KeyCache(self.keys, digests, self.spawn)
        self.authentication = Authentication(keyring, self.key_cache)
        self.writes = Writes(client)
        self.cards = Cards(client)
        self.observer = Observer(client)
        self.tenant_figures = TenantFigures(client) if settings.metrics_by_tenant else None
        self.door = Door(client, metrics, self.cards, waits_for_workers=settings.wait_for_workers)
        self.files = Kept(settings.files, BatchClient(settings.redis_url, watch=metrics.saw))
        self.webhooks = Endpoints(settings, secret, WebhookClient(settings.redis_url, watch=metrics.saw))
        self.reader = ThreadPoolExecutor(1, "reader")
        self.loading = asyncio.Semaphore(_LOADED_AT_ONCE)
        self.draining = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    def exemplar(self) -> dict[str, str] | None:
        """Labels that name the trace of the request that is served now, if its span is exported."""
        return None if self.tracing is None else exemplar_of(self.tracing.context)

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
        self.reader.shutdown(wait=False, cancel_futures=True)
        self.door.close()
        await self.files.client.close()
        await self.keys.close()
        await self.webhooks.client.close()
        await self.client.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
