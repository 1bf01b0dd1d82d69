"""Counters of one courier."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class CourierMetrics:
    """No label is a tenant's text."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tries = Counter(
            "octavo_clerk_webhook_tries", "Tries of deliveries that are over.", ["outcome"], registry=registry
        )
        for outcome in ("ok", "again", "failed", "gone"):
            self.tries.labels(outcome)
