"""Counters of one clerk."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server


class ClerkMetrics:
    """No label is a tenant's text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.owned = Gauge("octavo_clerk_batches", "Batches that this clerk owns.", registry=self.registry)
        self.lines = Counter(
            "octavo_clerk_lines", "Lines that are in a named part.", ["outcome"], registry=self.registry
        )
        self.submitted = Counter("octavo_clerk_jobs_submitted", "Jobs submitted for lines.", registry=self.registry)
        self.parts = Counter("octavo_clerk_parts", "Parts written and named.", registry=self.registry)
        self.ended = Counter("octavo_clerk_batches_ended", "Batches that ended.", ["status"], registry=self.registry)
        self.urgent = Counter(
            "octavo_clerk_batches_urgent", "Batches that went on as class normal to meet their window.",
            registry=self.registry,
        )  # fmt: skip
        self.expired_files = Counter(
            "octavo_clerk_files_expired", "Files removed at their time.", registry=self.registry
        )
        self.problems = Counter(
            "octavo_clerk_problems", "Times that a batch had to wait for something broken.", ["code"],
            registry=self.registry,
        )  # fmt: skip
        for outcome in ("completed", "failed", "undone"):
            self.lines.labels(outcome)
        for status in ("completed", "failed", "expired", "cancelled"):
            self.ended.labels(status)

    def serve(self, host: str, port: int) -> None:
        """Answer scrapes on a port, from a thread. Raises OSError."""
        start_http_server(port, addr=host, registry=self.registry)
