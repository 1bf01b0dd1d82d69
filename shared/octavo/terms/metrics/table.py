"""The whole table, by the process that serves each part of it."""

from __future__ import annotations

from octavo.terms.metrics.clerk import CLERK
from octavo.terms.metrics.gateway import GATEWAY
from octavo.terms.metrics.metric import Alert, Metric
from octavo.terms.metrics.queue import QUEUE
from octavo.terms.metrics.tenants import TENANTS
from octavo.terms.metrics.worker import WORKER

TABLE: dict[str, tuple[Metric, ...]] = {
    "Queue": QUEUE,
    "Tenants": TENANTS,
    "Gateways": GATEWAY,
    "Workers": WORKER,
    "Clerks": CLERK,
}


def metrics() -> list[Metric]:
    """All metrics."""
    return [metric for part in TABLE.values() for metric in part]


def alerts() -> list[Alert]:
    """All alerts, in the order of their metrics."""
    return [alert for metric in metrics() for alert in metric.alerts]
