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


def expression_of(metric: Metric) -> str:
    """The expression that draws a metric with a panel."""
    assert metric.panel is not None
    if metric.panel.expression:
        return metric.panel.expression
    by = metric.labels[0] if metric.labels else ""
    is_of_queue = metric in QUEUE
    match metric.kind:
        case "histogram":
            return f"histogram_quantile(0.95, sum by (le, {by}) (rate({metric.name}_bucket[5m])))"
        case "counter":
            return f"sum by ({by}) (rate({metric.name}_total[5m]))"
        case _:
            return f"{'max' if is_of_queue else 'sum'} by ({by}) ({metric.name})"
