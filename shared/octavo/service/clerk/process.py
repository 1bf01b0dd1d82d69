"""The process of a clerk. It ends with SIGTERM or SIGINT, and with the gateway that started it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from octavo.client.batches import BatchClient
from octavo.client.webhooks import WebhookClient
from octavo.service.clerk.clerk import Clerk
from octavo.service.clerk.desk import Desk
from octavo.service.clerk.metrics import ClerkMetrics
from octavo.service.clerk.settings import ClerkSettings
from octavo.service.storage import open_storage
from octavo.service.tracing.wanted import open_tracing
from octavo.service.webhooks.addresses import Networks
from octavo.service.webhooks.courier import Courier
from octavo.service.webhooks.metrics import CourierMetrics
from octavo.service.webhooks.outgoing import Outgoing
from octavo.terms.access.secret import Secret
from octavo.terms.errors import OctavoError
from octavo.terms.logs import configure_logging
from octavo.terms.webhooks import WebhookSecrets

log = logging.getLogger(__name__)


def run_clerk(settings: ClerkSettings) -> None:
    """Work until a signal. Raises OctavoError with nothing to do or a wrong secret, OSError for a taken port."""
    try:
        secret = settings.master_secret()
        Networks(settings.webhook_networks)
    except ValueError as error:
        raise OctavoError(str(error)) from None
    if settings.files is None and secret is None:
        raise OctavoError(
            "a clerk has nothing to do: set OCTAVO_FILES for batches, OCTAVO_SECRET for webhooks, as the gateways do"
        )
    configure_logging("octavo", settings.log_level, settings.log_format)
    asyncio.run(_serve(settings, secret))


async def _serve(settings: ClerkSettings, secret: Secret | None) -> None:
    metrics = ClerkMetrics()
    if settings.metrics_port:
        metrics.serve(settings.metrics_host, settings.metrics_port)
    tracing = open_tracing("octavo-clerk")
    async with AsyncExitStack() as stack:
        if tracing is not None:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        duties: list[Coroutine[Any, Any, None]] = []
        if settings.files is not None:
            client = await stack.enter_async_context(BatchClient(settings.redis_url))
            desk = Desk(client, open_storage(settings.files), settings.limits, metrics=metrics)
            stack.enter_context(desk.grammars)
            duties.append(Clerk(desk, settings.clerk_lease).run())
            log.info("looking for batches")
        if secret is not None:
            hooks = await stack.enter_async_context(WebhookClient(settings.redis_url))
            outgoing = Outgoing(networks=settings.webhook_networks, http=settings.webhook_http)
            told = CourierMetrics(metrics.registry)
            duties.append(Courier(hooks, outgoing, WebhookSecrets(secret), told, tracing=tracing).run())
            log.info("looking for webhooks to deliver")
        await _until_a_signal(duties)
        if settings.files is not None:
            log.info("gave its batches back")


async def _until_a_signal(duties: list[Coroutine[Any, Any, None]]) -> None:
    """Do all of it at once. Raises what one of them raises."""
    task = asyncio.create_task(_together(duties))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: task.cancelling() or task.cancel())  # a second one changes nothing
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def _together(duties: list[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for duty in duties:
            group.create_task(duty)
