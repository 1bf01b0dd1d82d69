"""Histograms name the traces of some of what they count, in OpenMetrics: where spans are exported, and never else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from collector import collecting
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families
from queue_client import Queue
from serving import serving
from waiting import STALL_S, eventually

from octavo.terms.metrics import gateway as of_gateway
from octavo.terms.metrics import worker as of_worker
from octavo.terms.tracing.context import TraceContext
from octavo_gateway.settings import GatewaySettings

CALLER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)
SILENT = CALLER._replace(trace_id="1" * 32, is_sampled=False)
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
OF_JOBS = {
    *(of_worker.QUEUE_TIME, of_worker.PREFILL_TIME, of_worker.DECODE_TIME, of_worker.FIRST_TOKEN),
    *(of_worker.TOKEN_TIME, of_worker.LATENCY, of_worker.PROMPT_TOKENS, of_worker.GENERATION_TOKENS),
    of_worker.MOST_GENERATION_TOKENS,
}
OF_REQUESTS = {of_gateway.TIME_TO_FIRST_TOKEN, of_gateway.INTER_TOKEN_LATENCY, of_gateway.REQUEST_LATENCY}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with collecting() as found:
        found.asked(monkeypatch)
        yield


def scrape(url: str) -> list[Family]:
    """Families in OpenMetrics: the same series as in the plain form, but for the times of their creation."""
    told = httpx.get(f"{url}/metrics", headers=OPENMETRICS, timeout=STALL_S).raise_for_status()
    assert told.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = list(text_string_to_metric_families(told.text))
    plain = httpx.get(f"{url}/metrics", timeout=STALL_S).raise_for_status()
    assert plain.headers["content-type"].startswith("text/plain")
    assert "trace_id" not in plain.text
    assert series(families) == series(list(plain_families(plain.text)))
    return families


def series(families: list[Family]) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    return {
        (sample.name, frozenset(sample.labels.items()))
        for each in families
        for sample in each.samples
        if not sample.name.endswith("_created")
    }


def traces(families: list[Family]) -> dict[str, set[str]]:
    """Traces that are named, by metric."""
    found: dict[str, set[str]] = {}
    for each in families:
        for sample in each.samples:
            if sample.exemplar is not None:
                assert sample.name == f"{each.name}_bucket"
                assert sample.exemplar.labels.keys() == {"trace_id"}
                assert sample.exemplar.value <= float(sample.labels["le"])
                found.setdefault(each.name, set()).add(sample.exemplar.labels["trace_id"])
    return found


def counted(url: str, name: str) -> float:
    return sum(
        sample.value for each in scrape(url) for sample in each.samples if sample.name == f"{name}_count"
    )  # fmt: skip


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def started(start_worker: Any, **settings: Any) -> str:
    """A worker that is ready. Its address for scrapes."""
    at = port()
    start_worker("step_seconds=0.001", metrics_port=at, **settings).wait_ready()
    return f"http://127.0.0.1:{at}"


def run(queue: Queue, redis_url: str, trace: TraceContext) -> None:
    """A job with a trace."""
    with serving(GatewaySettings(redis_url=redis_url)) as gateway:
        body = {"model": "demo", "prompt": [7, 8, 9], "sampling": {"max_tokens": 6, "ignore_eos": True}}
        headers = {"traceparent": str(trace)}
        told = httpx.post(f"{gateway}/v1/jobs", json=body, headers=headers, timeout=STALL_S).raise_for_status()
    queue.wait(told.json()["id"])


@pytest.mark.usefixtures("exported")
def test_a_worker_s_histograms_name_traces_that_are_recorded(queue: Queue, start_worker: Any, redis_url: str) -> None:
    url = started(start_worker, metrics_names="vllm")
    run(queue, redis_url, SILENT)
    eventually(lambda: counted(url, of_worker.LATENCY.name) == 1)
    assert traces(scrape(url)) == {}, "their caller records none"
    run(queue, redis_url, CALLER)
    eventually(lambda: counted(url, of_worker.LATENCY.name) == 2)
    names = {name for metric in OF_JOBS for name in (metric.name, *metric.vllm)}
    assert traces(scrape(url)) == {name: {CALLER.trace_id} for name in names}


def test_without_spans_no_histogram_names_a_trace(queue: Queue, start_worker: Any, redis_url: str) -> None:
    url = started(start_worker)
    run(queue, redis_url, CALLER)
    eventually(lambda: counted(url, of_worker.LATENCY.name) == 1)
    assert traces(scrape(url)) == {}


def ask(gateway: str, trace: TraceContext, **body: Any) -> None:
    asked = {"model": "demo", "prompt": [7, 8, 9], "max_tokens": 6, "ignore_eos": True, **body}
    headers = {"traceparent": str(trace)}
    httpx.post(f"{gateway}/v1/completions", json=asked, headers=headers, timeout=STALL_S).raise_for_status()


@pytest.mark.usefixtures("exported")
def test_a_gateway_s_histograms_name_traces_that_are_recorded(queue: Queue, start_worker: Any, redis_url: str) -> None:
    start_worker("step_seconds=0.001").wait_ready()
    with serving(GatewaySettings(redis_url=redis_url, metrics_by_tenant=True)) as gateway:
        ask(gateway, SILENT)
        assert traces(scrape(gateway)) == {}
        ask(gateway, CALLER, stream=True)
        eventually(lambda: counted(gateway, of_gateway.REQUEST_LATENCY.name) == 2)
        found = traces(scrape(gateway))
        assert found.keys() <= {metric.name for metric in OF_REQUESTS}
        assert found[of_gateway.TIME_TO_FIRST_TOKEN.name] == found[of_gateway.REQUEST_LATENCY.name] == {CALLER.trace_id}


def test_a_gateway_that_exports_nothing_names_no_trace(queue: Queue, start_worker: Any, redis_url: str) -> None:
    start_worker("step_seconds=0.001").wait_ready()
    with serving(GatewaySettings(redis_url=redis_url)) as gateway:
        ask(gateway, CALLER)
        assert traces(scrape(gateway)) == {}
        assert counted(gateway, of_gateway.REQUEST_LATENCY.name) == 1
