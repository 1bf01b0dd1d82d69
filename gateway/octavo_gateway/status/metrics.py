"""Prometheus metrics of a gateway: what it counts itself, and how the queue stands at the time of a scrape.

Workers and clerks serve their own (`octavo worker --metrics-port`). The names are those of `octavo.terms.metrics`.
"""

from __future__ import annotations

import os
from collections import Counter as Count
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from octavo.queue.calls import Transition
from octavo.queue.overview.standing import Standing
from octavo.queue.webhooks.reading import Backlog
from octavo.service.metrics.registry import counter, family, gauge, histogram, know_model
from octavo.terms.metrics import gateway as table
from octavo.terms.metrics import queue
from octavo.terms.workers import WorkerInfo

MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """Counters of one gateway process; with several workers they are summed over the processes of the gateway."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.http_requests = counter(table.HTTP_REQUESTS, registry)
        self.jobs_submitted = counter(table.JOBS_SUBMITTED, registry)
        self.requests_finished = counter(table.SEQUENCES_FINISHED, registry)
        self.time_to_first_token = histogram(table.TIME_TO_FIRST_TOKEN, registry)
        self.inter_token_latency = histogram(table.INTER_TOKEN_LATENCY, registry)
        self.request_latency = histogram(table.REQUEST_LATENCY, registry)
        self.sse_connections = gauge(table.SSE_CONNECTIONS, registry)
        self.sse_slow_consumers = counter(table.SSE_SLOW_CONSUMERS, registry)
        self.script_calls = histogram(table.SCRIPT_CALLS, registry)
        self._by_model = (
            (self.jobs_submitted, table.JOBS_SUBMITTED),
            (self.requests_finished, table.SEQUENCES_FINISHED),
            (self.time_to_first_token, table.TIME_TO_FIRST_TOKEN),
            (self.inter_token_latency, table.INTER_TOKEN_LATENCY),
            (self.request_latency, table.REQUEST_LATENCY),
        )

    def saw(self, transition: Transition) -> None:
        """A script call of the gateway's client is over."""
        self.script_calls.labels(transition.script, transition.outcome).observe(transition.seconds)

    def know_routes(self, routes: Iterable[tuple[str, str]]) -> None:
        """The series of these methods and paths exist from now on."""
        for method, path in routes:
            for status in table.STATUSES:
                self.http_requests.labels(method, path, status)

    def know_models(self, names: Iterable[str]) -> None:
        """Series of models that workers have registered exist from now on."""
        for name in names:
            for made, metric in self._by_model:
                know_model(made, metric, name)

    def families(self) -> Iterable[Family]:
        """All that is counted, over all processes where `PROMETHEUS_MULTIPROC_DIR` is set: without exemplars then."""
        if MULTIPROCESS_DIR not in os.environ:
            return self.registry.collect()
        _forget_the_dead(Path(os.environ[MULTIPROCESS_DIR]))
        processes = CollectorRegistry()
        MultiProcessCollector(processes)  # type: ignore[no-untyped-call]
        return processes.collect()


def _forget_the_dead(folder: Path) -> None:
    """Remove the gauges of processes that were killed: their streams are closed."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, PermissionError):  # or the id is another user's process by now
            mark_process_dead(pid)  # type: ignore[no-untyped-call]


class TokenClock:
    """Times the tokens of one OpenAI-style request, from its construction on. `exemplar` names its trace, if that is
    recorded."""

    def __init__(self, metrics: Metrics, model: str, sequences: int, exemplar: dict[str, str] | None = None) -> None:
        self._metrics = metrics
        self._exemplar = exemplar
        self._model = model
        self._sequences = sequences
        self._started = self._last = monotonic()
        self._inter_token_latency: Histogram | None = None

    def tokens(self, count: int) -> None:
        """`count` tokens of one sequence arrived now."""
        now = monotonic()
        if self._inter_token_latency is None:  # labels only now: a refused request may name any model
            self._inter_token_latency = self._metrics.inter_token_latency.labels(self._model)
            self._metrics.time_to_first_token.labels(self._model).observe(now - self._started, self._exemplar)
        elif count:
            self._inter_token_latency.observe((now - self._last) * self._sequences / count, self._exemplar)
        self._last = now

    def end(self) -> None:
        """All sequences are complete."""
        self._metrics.request_latency.labels(self._model).observe(monotonic() - self._started, self._exemplar)


class Seen(NamedTuple):
    """The queue as it was read for a scrape: `batches` that a clerk owns, and that wait for one; `deliveries` of
    webhooks."""

    state: Standing
    workers: Iterable[WorkerInfo]
    batches: tuple[int, int]
    deliveries: Backlog


def queue_families(seen: Seen | None) -> list[Family]:
    """How the queue stands. None: the server cannot be reached, and then nothing else is said."""
    up = family(queue.SERVER_UP, {(): float(seen is not None)})
    return [up, *([] if seen is None else _queue(*seen))]


def _queue(
    state: Standing, workers: Iterable[WorkerInfo], batches: tuple[int, int], deliveries: Backlog
) -> Iterable[Family]:
    models = {model for model, _ in state.waiting}
    live = Count(worker.model for worker in workers)
    depth = Count(dict.fromkeys(models, 0))
    for (model, _), waiting in state.waiting.items():
        depth[model] += waiting.jobs
    yield family(queue.DEPTH, {(model,): count for model, count in depth.items()})
    yield family(queue.BACKLOG_TOKENS, {key: waiting.tokens for key, waiting in state.waiting.items()})
    yield family(queue.OLDEST_WAIT, {key: waiting.oldest_s for key, waiting in state.waiting.items()})
    yield family(queue.LANE_PAUSED, {key: float(key in state.paused) for key in state.waiting})
    yield family(queue.WORKERS, {(model,): live[model] for model in models | live.keys()})
    yield family(queue.TAKEOVERS, {(model,): state.takeovers.get(model, 0) for model in models})
    yield family(queue.WRITES_REFUSED, {(model,): state.refused.get(model, 0) for model in models})
    yield family(queue.DEAD_LETTERS, {(): state.dead_letters})
    yield family(queue.BATCHES, {("owned",): batches[0], ("waiting",): batches[1]})
    yield family(queue.BATCH_LAG, {(): state.batch_lag_s})
    yield family(queue.DELIVERIES, {(): deliveries.waiting})
    yield family(queue.DELIVERY_AGE, {(): deliveries.oldest_s})
    yield family(queue.DELIVERY_FAILURES, {(): deliveries.failed})
