"""Figures of one worker: its engine's counters as they stand, and histograms of its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family

from octavo.queue.protocol import Claim
from octavo.service.metrics.registry import Values, counter, family, histogram, know_model, renamed, summary
from octavo.terms.messages import JobStatus, Terminal
from octavo.terms.metrics import worker as table
from octavo.terms.metrics.metric import Metric
from octavo.terms.stats import EngineStats, ScriptCalls
from octavo.terms.tracing.context import exemplar_of
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.agent.telemetry.watch import JobWatch

_HISTOGRAMS = (
    *(table.QUEUE_TIME, table.PREFILL_TIME, table.DECODE_TIME, table.FIRST_TOKEN, table.TOKEN_TIME, table.LATENCY),
    *(table.PROMPT_TOKENS, table.GENERATION_TOKENS, table.MOST_GENERATION_TOKENS),
)


class Figures(JobWatch):
    """Collector of Prometheus' library. `claimed` and `ended` are called once a job, by the event loop; `collect` in
    the thread of a scrape, as `stats`, `calls` and `is_ready` are. With `vllm` each figure has its name there, too.
    Where spans are exported (`is_traced`) histograms name traces of jobs that they are made of."""

    def __init__(
        self,
        model: str,
        *,
        stats: Callable[[], EngineStats],
        calls: Callable[[], Iterable[ScriptCalls]],
        is_ready: Callable[[], bool],
        vllm: bool,
        is_traced: Callable[[], bool],
    ) -> None:
        self._model, self._is_traced = model, is_traced
        self._stats, self._calls, self._is_ready, self._vllm = stats, calls, is_ready, vllm
        self._counted = CollectorRegistry()
        self._success = counter(table.SUCCESS, self._counted)
        know_model(self._success, table.SUCCESS, model)
        made = {metric.name: histogram(metric, self._counted) for metric in _HISTOGRAMS}
        self._histograms = {name: each.labels(model) for name, each in made.items()}

    def claimed(self, job: ActiveJob) -> None:
        if job.claim.attempt == 1:
            self._observe(table.QUEUE_TIME, _age(job.claim), self._exemplar(job.claim))

    def ended(self, job: ActiveJob, terminal: Terminal) -> None:
        usage, claim = terminal.usage, job.claim
        observe = partial(self._observe, exemplar=self._exemplar(claim))
        observe(table.LATENCY, _age(claim))
        observe(table.PROMPT_TOKENS, usage.prompt_tokens)
        observe(table.GENERATION_TOKENS, usage.completion_tokens)
        observe(table.MOST_GENERATION_TOKENS, max((len(each.ids) for each in job.sequences), default=0))
        if job.computed_at is not None:
            decoded_s = time.monotonic() - job.computed_at
            observe(table.PREFILL_TIME, job.computed_at - job.claimed_at)
            observe(table.DECODE_TIME, decoded_s)
            if claim.offset == 0:
                observe(table.FIRST_TOKEN, _age(claim) - decoded_s)
            width, here = len(job.sequences), usage.completion_tokens - claim.offset
            if here > width:  # the first of each sequence is the prefill's
                observe(table.TOKEN_TIME, decoded_s * width / (here - width))
        if terminal.status is JobStatus.COMPLETED:
            for sequence in job.sequences:
                self._success.labels(self._model, sequence.finish_reason or "length").inc()

    def _exemplar(self, claim: Claim) -> dict[str, str] | None:
        return exemplar_of(claim.trace) if self._is_traced() else None

    def _observe(self, metric: Metric, value: float, exemplar: dict[str, str] | None) -> None:
        self._histograms[metric.name].observe(max(0.0, value), exemplar)

    def collect(self) -> Iterable[Family]:
        """All families."""
        stats, model = self._stats(), self._model
        families = [family(table.READY, {(model,): float(self._is_ready())})]
        families += [family(metric, _values(metric, stats, model)) for metric in table.STATS]
        sums: dict[tuple[str, ...], tuple[int, float]] = {_no_call(model): (0, 0.0)}
        sums |= {(model, calls.script, calls.outcome): (calls.count, calls.seconds) for calls in self._calls()}
        families.append(summary(table.WORKER_SCRIPT_CALLS, sums))
        families += self._counted.collect()
        return [*families, *renamed(families, table.WORKER)] if self._vllm else families


def _no_call(model: str) -> tuple[str, ...]:
    """A worker that has called nothing has its series, too."""
    return table.WORKER_SCRIPT_CALLS.sets(model)[0]


def _age(claim: Claim) -> float:
    """Seconds since the job might have been claimed, by the clocks of two hosts."""
    return time.time() - claim.waits_since


def _values(metric: Metric, stats: EngineStats, model: str) -> Values:
    found = getattr(stats, metric.stat)
    if callable(found):
        return {(model, name): value for name, value in found().items()}
    return {(model,): found}
