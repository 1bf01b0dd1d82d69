"""Counters of one clerk."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from octavo.service.metrics.port import MetricsPort
from octavo.service.metrics.registry import counter, gauge
from octavo.terms.metrics import clerk as table


class ClerkMetrics:
    """No label is a tenant's text."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.owned = gauge(table.BATCHES_OWNED, registry)
        self.lines = counter(table.LINES, registry)
        self.submitted = counter(table.JOBS_SUBMITTED, registry)
        self.parts = counter(table.PARTS, registry)
        self.ended = counter(table.BATCHES_ENDED, registry)
        self.urgent = counter(table.BATCHES_URGENT, registry)
        self.expired_files = counter(table.FILES_EXPIRED, registry)
        self.problems = counter(table.PROBLEMS, registry)

    def serve(self, host: str, port: int) -> None:
        """Answer scrapes and probes on a port, from a thread. Raises OSError."""
        MetricsPort(host, port, self.registry, lambda: None)
