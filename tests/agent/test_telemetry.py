"""A worker's own figures: served from a thread, by job, under octavo's and vLLM's names."""

from __future__ import annotations

import os
import re
import signal
import socket

import httpx
import psutil
from exposition import sample
from prometheus_client.parser import text_string_to_metric_families
from queue_client import Queue
from waiting import STALL_S, eventually

from octavo.terms.messages import JobStatus
from octavo.terms.metrics import worker as table


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def scrape(port: int) -> str:
    return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=STALL_S).raise_for_status().text


def status(port: int, path: str) -> int:
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=STALL_S).status_code
    except httpx.TransportError:
        return 0


def series(text: str) -> set[str]:
    """Names of samples with their labels, `le` apart."""
    return {
        re.sub(r',?le="[^"]*"', "", line.rpartition(" ")[0]) for line in text.splitlines() if not line.startswith("#")
    }


def test_a_worker_counts_its_jobs(queue: Queue, start_worker) -> None:
    port = free_port()
    start_worker("step_seconds=0.001", metrics_port=port)
    eventually(lambda: status(port, "/readyz") == 200)
    assert status(port, "/livez") == 200
    assert status(port, "/nowhere") == 404
    before = scrape(port)
    jobs = [queue.submit((7, 8, 9), sampling={"max_tokens": 20, "ignore_eos": True}) for _ in range(3)]
    jobs.append(queue.submit((5, 6), sampling={"max_tokens": 10, "ignore_eos": True, "n": 2}))
    results = [queue.wait(job) for job in jobs]
    eventually(lambda: sample(scrape(port), "octavo_request_generation_tokens_count") == 4)
    text = scrape(port)
    assert sample(text, "octavo_request_success_total", model_name="demo", finished_reason="length") == 5
    assert sample(text, "octavo_request_success_total", finished_reason="stop") == 0
    generated = sum(result.usage.completion_tokens for result in results)
    assert sample(text, "octavo_request_generation_tokens_sum", model_name="demo") == generated == 80
    assert sample(text, "octavo_request_prompt_tokens_sum") == 11
    assert sample(text, "octavo_request_max_num_generation_tokens_sum") == 70
    for name in ("queue", "prefill", "decode"):
        assert sample(text, f"octavo_request_{name}_time_seconds_count") == 4, name
    for name in ("time_to_first_token", "request_time_per_output_token", "e2e_request_latency"):
        assert sample(text, f"octavo_{name}_seconds_count") == 4, name
    whole = sample(text, "octavo_e2e_request_latency_seconds_sum")
    assert sample(text, "octavo_request_decode_time_seconds_sum") <= whole
    assert 0 < sample(text, "octavo_time_to_first_token_seconds_sum") <= whole
    assert sample(text, "octavo_generation_tokens_total") == generated
    assert sample(text, "octavo_worker_ready") == 1
    assert sample(text, "octavo_worker_script_call_seconds_count", script="finish", outcome="ok") >= 4
    by_model = [metric for metric in table.WORKER if metric.labels == ("model_name",)]
    assert {f'{metric.samples[-1]}{{model_name="demo"}}' for metric in by_model} <= series(before)
    assert "vllm:" not in text


def test_vllm_s_names_are_there_where_they_are_asked_for(queue: Queue, start_worker) -> None:
    port = free_port()
    start_worker(metrics_port=port, metrics_names="vllm").wait_ready()
    job = queue.submit((7, 8, 9), sampling={"max_tokens": 5, "ignore_eos": True})
    assert queue.wait(job).status is JobStatus.COMPLETED
    eventually(lambda: sample(scrape(port), "vllm:request_success_total", finished_reason="length") == 1)
    text = scrape(port)
    served = {family.name for family in text_string_to_metric_families(text)}
    assert {name for metric in table.WORKER for name in metric.vllm} <= served
    assert sample(text, "vllm:request_generation_tokens_sum", model_name="demo", engine="0") == 5
    assert sample(text, "vllm:generation_tokens_total", model_name="demo", engine="0") == 5
    assert sample(text, "octavo_generation_tokens_total") == 5


def test_a_job_that_was_taken_over_waited_once_and_has_one_first_token(queue: Queue, start_worker) -> None:
    ports = [free_port(), free_port()]
    first = start_worker("step_seconds=0.02", metrics_port=ports[0]).wait_ready()
    job = queue.submit((7, 8, 9), sampling={"max_tokens": 60, "ignore_eos": True})
    eventually(lambda: int(queue.field(job, "n") or 0) > 3)
    eventually(lambda: sample(scrape(ports[0]), "octavo_request_queue_time_seconds_count") == 1)
    start_worker("step_seconds=0.001", metrics_port=ports[1]).wait_ready()
    first.send(signal.SIGKILL)
    assert queue.wait(job).usage.completion_tokens == 60
    eventually(lambda: sample(scrape(ports[1]), "octavo_e2e_request_latency_seconds_count") == 1)
    text = scrape(ports[1])
    assert sample(text, "octavo_request_queue_time_seconds_count") == 0
    assert sample(text, "octavo_time_to_first_token_seconds_count") == 0
    assert sample(text, "octavo_request_generation_tokens_sum") == 60
    assert queue.connection.hgetall(queue.cell.keys.tally)[b"takeovers:demo"] == b"1"


def test_a_worker_whose_engine_is_gone_lives_and_is_not_ready(queue: Queue, start_worker) -> None:
    port = free_port()
    worker = start_worker(metrics_port=port).wait_ready()
    eventually(lambda: status(port, "/readyz") == 200)
    os.kill(worker.engine_pid, signal.SIGKILL)
    eventually(lambda: status(port, "/readyz") == 503)
    assert status(port, "/livez") == 200
    eventually(lambda: status(port, "/readyz") == 200)


def test_a_port_that_is_taken_is_a_wrong_setting(queue: Queue, start_worker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = start_worker(metrics_port=port)
        assert worker.wait() != 0
    assert f"--metrics-port: 127.0.0.1:{port} cannot be served" in worker.log


def test_no_port_is_open_unless_it_is_asked_for(queue: Queue, start_worker) -> None:
    worker = start_worker().wait_ready()
    assert [c for c in psutil.Process(worker.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN] == []
