"""Prometheus metrics: what this gateway counts itself, and what the workers' heartbeats say at the time of a scrape.

Names are octavo's prefix plus the suffixes that vLLM made common, so that dashboards port by search and replace.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from octavo.queue.calls import Transition
from octavo.queue.webhooks.reading import Backlog
from octavo.terms.workers import WorkerInfo

MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"

_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_INTER_TOKEN_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_REQUEST_BUCKETS = (
    0.05,
    0.1,
    0.3,
    0.5,
    0.8,
    1,
    1.5,
    2,
    2.5,
    5,
    10,
    15,
    20,
    30,
    40,
    50,
    60,
    120,
    240,
    480,
    960,
    1920,
    7680,
)

_SCRIPT_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_WORKER_GAUGES = {
    "running": "octavo_num_requests_running",
    "waiting": "octavo_num_requests_waiting",
    "swapped": "octavo_num_requests_swapped",
}
_WORKER_COUNTERS = {
    "steps": "octavo_engine_steps",
    "decoded_tokens": "octavo_engine_tokens_decoded",
    "prefilled_tokens": "octavo_engine_tokens_prefilled",
    "drafted_tokens": "octavo_spec_decode_num_draft_tokens",
    "accepted_tokens": "octavo_spec_decode_num_accepted_tokens",
    "preemptions": "octavo_num_preemptions",
    "recomputed_tokens": "octavo_tokens_recomputed",
    "restored_tokens": "octavo_tokens_restored",
    "prompt_tokens": "octavo_prompt_tokens",
    "cached_tokens": "octavo_prompt_tokens_cached",
    "generated_tokens": "octavo_generation_tokens",
}


class Metrics:
    """Counters of one gateway process; with several workers they are summed over the processes of the gateway."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.http_requests = Counter(
            "octavo_http_requests", "Requests answered.", ["method", "route", "status"], registry=registry
        )
        self.jobs_submitted = Counter(
            "octavo_jobs_submitted", "Jobs accepted into the queue.", ["model", "priority"], registry=registry
        )
        self.requests_finished = Counter(
            "octavo_request_success",
            "OpenAI-style sequences completed.",
            ["model_name", "finished_reason"],
            registry=registry,
        )
        self.time_to_first_token = Histogram(
            "octavo_time_to_first_token_seconds",
            "From the arrival of an OpenAI-style request to its first token.",
            ["model_name"],
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self.inter_token_latency = Histogram(
            "octavo_inter_token_latency_seconds",
            "Time between tokens of an OpenAI-style request, as they reach the gateway.",
            ["model_name"],
            buckets=_INTER_TOKEN_BUCKETS,
            registry=registry,
        )
        self.request_latency = Histogram(
            "octavo_e2e_request_latency_seconds",
            "From the arrival of an OpenAI-style request to its last token.",
            ["model_name"],
            buckets=_REQUEST_BUCKETS,
            registry=registry,
        )
        self.sse_connections = Gauge(
            "octavo_sse_connections", "Open event streams.", registry=registry, multiprocess_mode="livesum"
        )
        self.sse_slow_consumers = Counter(
            "octavo_sse_slow_consumers",
            "Streams whose client was too slow and had to be waited for.",
            registry=registry,
        )
        self.script_calls = Histogram(
            "octavo_script_call_seconds",
            "Round trips of this gateway's script calls, by script and outcome: ok, refused, failed, lost.",
            ["script", "outcome"],
            buckets=_SCRIPT_BUCKETS,
            registry=registry,
        )
        self.jobs_reclaimed = Counter(
            "octavo_jobs_reclaimed", "Jobs taken back from workers that went silent.", registry=registry
        )

    def saw(self, transition: Transition) -> None:
        """A script call of the gateway's client is over."""
        self.script_calls.labels(transition.script, transition.outcome).observe(transition.seconds)

    def render(self) -> bytes:
        """The text format, over all processes where `PROMETHEUS_MULTIPROC_DIR` is set."""
        if MULTIPROCESS_DIR not in os.environ:
            return generate_latest(self.registry)
        _forget_the_dead(Path(os.environ[MULTIPROCESS_DIR]))
        processes = CollectorRegistry()
        MultiProcessCollector(processes)  # type: ignore[no-untyped-call]
        return generate_latest(processes)


def _forget_the_dead(folder: Path) -> None:
    """Remove the gauges of processes that were killed: their streams are closed."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, PermissionError):  # or the id is another user's process by now
            mark_process_dead(pid)  # type: ignore[no-untyped-call]


class TokenClock:
    """Times the tokens of one OpenAI-style request, from its construction on."""

    def __init__(self, metrics: Metrics, model: str, sequences: int) -> None:
        self._metrics = metrics
        self._model = model
        self._sequences = sequences
        self._started = self._last = monotonic()
        self._inter_token_latency: Histogram | None = None

    def tokens(self, count: int) -> None:
        """`count` tokens of one sequence arrived now."""
        now = monotonic()
        if self._inter_token_latency is None:  # labels only now: a refused request may name any model
            self._inter_token_latency = self._metrics.inter_token_latency.labels(self._model)
            self._metrics.time_to_first_token.labels(self._model).observe(now - self._started)
        elif count:
            self._inter_token_latency.observe((now - self._last) * self._sequences / count)
        self._last = now

    def end(self) -> None:
        """All sequences are complete."""
        self._metrics.request_latency.labels(self._model).observe(monotonic() - self._started)


class _Snapshot:
    """Adapts ready-made metric families to prometheus_client's collector protocol."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def render_fleet(workers: Iterable[WorkerInfo] | None, queued: Mapping[str, int] | None) -> bytes:
    """The state behind this gateway: workers by their heartbeats, queued jobs by model. None: server unreachable."""
    registry = CollectorRegistry()
    up = workers is not None and queued is not None
    registry.register(_Snapshot([_server_up(up), *_queue(queued or {}), *_workers(list(workers or ()))]))
    return generate_latest(registry)


def render_batches(owned: int, waiting: int) -> bytes:
    """Batches that have not ended, by whether a clerk has them."""
    registry = CollectorRegistry()
    family = GaugeMetricFamily("octavo_batches", "Batches that have not ended.", labels=["state"])
    for state, count in (("owned", owned), ("waiting", waiting)):
        family.add_metric([state], count)
    registry.register(_Snapshot([family]))
    return generate_latest(registry)


def render_webhooks(backlog: Backlog) -> bytes:
    """Deliveries of webhooks: those that wait, how late the oldest is, and those that were given up."""
    registry = CollectorRegistry()
    waiting, oldest = "octavo_webhook_deliveries_waiting", "octavo_webhook_oldest_due_seconds"
    families = [
        GaugeMetricFamily(waiting, "Deliveries that wait for a try.", value=backlog.waiting),
        GaugeMetricFamily(oldest, "Seconds since the oldest of them was due.", value=backlog.oldest_s),
        CounterMetricFamily("octavo_webhook_failures", "Deliveries that were given up.", value=backlog.failed),
    ]
    registry.register(_Snapshot(families))
    return generate_latest(registry)


def _server_up(up: bool) -> Metric:
    return GaugeMetricFamily("octavo_server_up", "1 while the Redis server answers.", value=float(up))


def _queue(queued: Mapping[str, int]) -> Iterable[Metric]:
    depth = GaugeMetricFamily("octavo_queue_depth", "Jobs that wait for a worker.", labels=["model_name"])
    for model, count in queued.items():
        depth.add_metric([model], count)
    yield depth


def _workers(workers: list[WorkerInfo]) -> Iterable[Metric]:
    labels = ["worker", "model_name"]
    up = GaugeMetricFamily("octavo_worker_up", "1 for every worker whose heartbeat is fresh.", labels=labels)
    blocks = GaugeMetricFamily("octavo_kv_blocks", "Blocks of a worker's KV cache.", labels=[*labels, "state"])
    reasons = CounterMetricFamily(
        "octavo_preemptions",
        "Sequences that gave up their memory, by what became of it and why.",
        labels=[*labels, "reason"],
    )
    gauges = {key: GaugeMetricFamily(name, f"Sequences {key}.", labels=labels) for key, name in _WORKER_GAUGES.items()}
    counters = {
        key: CounterMetricFamily(name, f"{key.replace('_', ' ').capitalize()} since the worker's start.", labels=labels)
        for key, name in _WORKER_COUNTERS.items()
    }
    seconds = CounterMetricFamily(
        "octavo_engine_seconds", "Where an engine's time went since its start.", labels=[*labels, "phase"]
    )
    calls = SummaryMetricFamily(
        "octavo_worker_script_call_seconds",
        "Round trips of a worker's script calls since its start.",
        labels=[*labels, "script", "outcome"],
    )
    for worker in workers:
        at = [worker.id, worker.model]
        up.add_metric(at, 1)
        for phase, spent in worker.stats.seconds().items():
            seconds.add_metric([*at, phase], spent)
        for state, count in worker.stats.blocks().items():
            blocks.add_metric([*at, state], count)
        for call in worker.stats.script_calls:
            calls.add_metric([*at, call.script, call.outcome], call.count, call.seconds)
        for reason, count in worker.stats.reasons().items():
            reasons.add_metric([*at, reason], count)
        for key, family in (gauges | counters).items():
            family.add_metric(at, getattr(worker.stats, key))
    yield from (up, blocks, seconds, calls, reasons, *gauges.values(), *counters.values())
