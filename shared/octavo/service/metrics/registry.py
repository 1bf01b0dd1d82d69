"""Metrics of the table, made for Prometheus' library: counted by a process, or read by it at a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric as Family

from octavo.terms.metrics.metric import Metric

M = TypeVar("M", bound=MetricWrapperBase)
ENGINE = "0"
"""The label `engine` of vLLM's metrics: a worker has one."""
_OPENMETRICS = "application/openmetrics-text"


def counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    """A counter of this process, with all its label sets."""
    return _with_sets(Counter(metric.name, metric.text, metric.labels, registry=registry), metric)


def gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    """A gauge of this process; the processes of a gateway that live are added up."""
    made = Gauge(metric.name, metric.text, metric.labels, registry=registry, multiprocess_mode="livesum")
    return _with_sets(made, metric)


def histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    """A histogram of this process."""
    made = Histogram(metric.name, metric.text, metric.labels, buckets=metric.buckets, registry=registry)
    return _with_sets(made, metric)


def _with_sets(made: M, metric: Metric) -> M:
    if not metric.is_by_model:
        for values in metric.sets():
            made.labels(*values)
    return made


def know_model(made: MetricWrapperBase, metric: Metric, model: str) -> None:
    """A series that never counted is absent, and an alert on it never fires: make those of this model."""
    for values in metric.sets(model):
        made.labels(*values)


Values = Mapping[tuple[str, ...], float]


def family(metric: Metric, values: Values) -> Family:
    """A metric that is read at a scrape, by its label values; sets that are known and lack a value are 0."""
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    made = kind(metric.name, metric.text, labels=metric.labels)
    for labels in _all_sets(metric, values):
        made.add_metric(labels, values.get(labels, 0.0))
    return made


def summary(metric: Metric, sums: Mapping[tuple[str, ...], tuple[int, float]]) -> Family:
    """Counts and sums by label values."""
    made = SummaryMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels in _all_sets(metric, sums):
        count, total = sums.get(labels, (0, 0.0))
        made.add_metric(labels, count, total)
    return made


def _all_sets(metric: Metric, values: Mapping[tuple[str, ...], object]) -> list[tuple[str, ...]]:
    known = set(metric.sets()) if not metric.is_by_model else set()
    models = {labels[0] for labels in values} if metric.is_by_model else set()
    return sorted(known.union(values, *(metric.sets(model) for model in models)))


def accepted(header: str) -> str:
    """A request's `Accept` for the library, whose OpenMetrics has `_` for the `:` of vLLM's names unless all letters
    may stand in a name."""
    return f"{_OPENMETRICS};version=1.0.0;escaping=allow-utf-8" if _OPENMETRICS in header else header


class Ready:
    """Families that are ready, as a collector of Prometheus' library."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Family]:
        return self._families


def renamed(families: Iterable[Family], table: Sequence[Metric]) -> list[Family]:
    """The same figures under the names that dashboards made for vLLM ask for, with its label `engine`."""
    others = {metric.name: metric.vllm for metric in table}
    return [_renamed(made, name) for made in families for name in others.get(made.name, ())]


def _renamed(made: Family, name: str) -> Family:
    other = Family(name, made.documentation, made.type)
    other.samples = [
        sample._replace(name=name + sample.name.removeprefix(made.name), labels={**sample.labels, "engine": ENGINE})
        for sample in made.samples
    ]
    return other
