"""The worker's port for Prometheus and probes."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from octavo.service.metrics.port import MetricsPort
from octavo_worker.agent.telemetry.figures import Figures
from octavo_worker.contract.options import WorkerOptions


def serve_figures(options: WorkerOptions, figures: Figures, why_not_ready: Callable[[], str | None]) -> MetricsPort:
    """Answer from now on. Raises OSError for a port that is taken."""
    registry = CollectorRegistry()
    registry.register(figures)
    return MetricsPort(options.metrics_host, options.metrics_port, registry, why_not_ready)
