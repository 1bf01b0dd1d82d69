"""Couriers that run beside a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from receivers import LOCAL

from octavo.client.webhooks import WebhookClient
from octavo.service.tracing.tracing import Tracing
from octavo.service.webhooks.courier import PAUSES_S, Courier
from octavo.service.webhooks.metrics import CourierMetrics
from octavo.service.webhooks.outgoing import Outgoing
from octavo.terms.access.secret import Secret
from octavo.terms.webhooks import WebhookSecrets

SECRET = "s" * 40


def secrets(*lines: str) -> WebhookSecrets:
    return WebhookSecrets(Secret(lines or [SECRET]))


@asynccontextmanager
async def delivering(
    url: str,
    *,
    pauses_s: tuple[float, ...] = PAUSES_S,
    signing: WebhookSecrets | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[CollectorRegistry]:
    """A courier in this event loop, and its counters."""
    registry = CollectorRegistry()
    async with WebhookClient(url) as client:
        outgoing = Outgoing(http=True, networks=LOCAL)
        told = CourierMetrics(registry)
        courier = Courier(client, outgoing, signing or secrets(), told, tracing=tracing, pauses_s=pauses_s)
        task = asyncio.create_task(courier.run())
        try:
            yield registry
        finally:
            task.cancel()
            await asyncio.wait([task])
