"""Counters of one courier."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from octavo.service.metrics.registry import counter
from octavo.terms.metrics.clerk import WEBHOOK_TRIES


class CourierMetrics:
    """No label is a tenant's text."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tries = counter(WEBHOOK_TRIES, registry)
