"""The table of metrics, and what processes make of it."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from octavo.service.clerk.metrics import ClerkMetrics
from octavo.service.metrics.registry import Ready, counter, family, know_model, renamed, summary
from octavo.service.webhooks.metrics import CourierMetrics
from octavo.terms.metrics import clerk, gateway, queue, tenants, worker
from octavo.terms.metrics.metric import MODEL, Metric
from octavo.terms.metrics.table import TABLE, alerts, metrics
from octavo.terms.stats import PREEMPTION_REASONS, EngineStats


def series(text: bytes) -> set[str]:
    return {line.rpartition(" ")[0] for line in text.decode().splitlines() if not line.startswith("#")}


def test_a_name_is_served_by_one_kind_of_process_only() -> None:
    """A sum over all processes counts nothing twice."""
    names = Counter(sample for metric in metrics() for sample in metric.samples)
    assert [name for name, count in names.items() if count > 1] == []
    assert all(name.startswith("octavo_") for name in names)


@pytest.mark.parametrize("metric", metrics(), ids=lambda metric: metric.name)
def test_a_metric_is_whole(metric: Metric) -> None:
    assert metric.text.endswith(".")
    assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket", "_created"))
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert MODEL not in metric.labels[1:], "a model is the first label"
    assert not {"worker", "job", "key", "prompt", "engine"} & set(metric.labels)
    assert "tenant" not in metric.labels or metric in tenants.TENANTS
    assert (metric.unit == "seconds") == ("seconds" in metric.name)
    if metric is not gateway.HTTP_REQUESTS:  # its routes are those of the application
        rest = len(metric.labels) - metric.is_by_model
        assert not rest or metric.known, "all label sets exist from the start"
        assert all(len(values) == rest for values in metric.known)


def test_alerts_have_names_of_their_own_and_a_first_step() -> None:
    assert len(alerts()) > 10
    assert len({alert.name for alert in alerts()}) == len(alerts())
    assert all(len(alert.step) > 30 for alert in alerts())


def test_every_figure_of_the_engine_is_what_the_stats_have() -> None:
    stats = EngineStats(used_blocks=3, free_blocks=1, used_states=2, used_windows=2)
    for metric in worker.STATS:
        found = getattr(stats, metric.stat)
        if callable(found):
            assert {(name,) for name in found()} == set(metric.known), metric.name
    assert stats.used_share == 0.75
    assert EngineStats().used_share == 0.0
    assert EngineStats().states() == {}, "figures of slots where a model keeps no states"
    assert EngineStats().windows() == {}, "figures of a second group where a model has one"
    assert {reason for (reason,) in next(m for m in worker.STATS if m.stat == "reasons").known} == set(
        PREEMPTION_REASONS
    )


def test_all_series_exist_before_anything_is_counted() -> None:
    registry = CollectorRegistry()
    made = counter(gateway.JOBS_SUBMITTED, registry)
    assert "octavo_jobs_submitted_total{" not in generate_latest(registry).decode()
    know_model(made, gateway.JOBS_SUBMITTED, "toy")
    text = generate_latest(registry)
    for priority in ("high", "normal", "batch"):
        assert f'octavo_jobs_submitted_total{{model_name="toy",priority="{priority}"}}' in series(text)
    of_clerk = ClerkMetrics().registry
    CourierMetrics(of_clerk)
    clerks = series(generate_latest(of_clerk))
    for metric in clerk.CLERK:
        for values in metric.sets() or [()]:
            labels = ",".join(f'{name}="{value}"' for name, value in zip(metric.labels, values, strict=True))
            assert metric.samples[0] + (f"{{{labels}}}" if labels else "") in clerks


def test_a_family_that_is_read_has_the_sets_that_lack_a_value() -> None:
    read = family(queue.OLDEST_WAIT, {("toy", "high"): 7.5})
    assert {sample.labels["priority"]: sample.value for sample in read.samples} == {
        "high": 7.5,
        "normal": 0,
        "batch": 0,
    }
    empty = family(queue.BATCHES, {})
    assert {sample.labels["state"] for sample in empty.samples} == {"owned", "waiting"}


def test_vllm_s_names_have_the_same_figures_and_its_labels() -> None:
    cached = next(metric for metric in worker.STATS if metric.stat == "cached_tokens")
    families = [
        family(cached, {("toy",): 5.0}),
        summary(worker.WORKER_SCRIPT_CALLS, {("toy", "claim", "ok"): (2, 0.5)}),
    ]
    registry = CollectorRegistry()
    registry.register(Ready(renamed(families, worker.WORKER)))
    text = generate_latest(registry).decode()
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="toy"} 5.0' in text
    assert 'vllm:gpu_prefix_cache_hits_total{engine="0",model_name="toy"} 5.0' in text
    assert "script" not in text


QUERIED = (
    *("e2e_request_latency_seconds", "time_to_first_token_seconds", "request_time_per_output_token_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "request_queue_time_seconds_sum"),
    *("request_prefill_time_seconds_sum", "request_decode_time_seconds_sum"),
    *("request_max_num_generation_tokens_sum", "num_requests_running", "num_requests_waiting"),
    *("kv_cache_usage_perc", "prompt_tokens_total", "generation_tokens_total", "request_success_total"),
    *("gpu_prefix_cache_hits_total", "gpu_prefix_cache_queries_total", "num_preemptions_total"),
)
"""Names that the dashboards of vLLM's production-stack and llm-d's router query."""


def test_every_name_that_published_dashboards_query_is_there() -> None:
    served = {name for metric in metrics() for name in metric.vllm}
    base = {re.sub(r"_(total|sum)$", "", name) for name in QUERIED}
    assert {f"vllm:{name}" for name in base} <= served


def test_each_part_is_served_by_the_process_that_the_table_says() -> None:
    assert set(TABLE) == {"Queue", "Tenants", "Gateways", "Workers", "Clerks"}
    assert all(metric.vllm == () for title in ("Queue", "Tenants", "Gateways", "Clerks") for metric in TABLE[title])
    assert all(metric.is_by_model for metric in TABLE["Workers"])
