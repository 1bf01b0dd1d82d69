"""One trace a job, in a collector of the test's own: from the client through any number of workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from collector import Collector, Seen, collecting
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from queue_client import Queue
from scripted_models import scripted_model
from serving import serving
from waiting import STALL_S, eventually

from octavo import AsyncClient, Client
from octavo.terms.tracing import conventions
from octavo.terms.tracing.context import TraceContext
from octavo_gateway.settings import GatewaySettings

CALLER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)
LONG = {"max_tokens": 60, "ignore_eos": True}
NAMES = {value for name, value in vars(conventions).items() if name.isupper() and isinstance(value, str)}
REQUIRED = {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        found.asked(monkeypatch)
        yield found


@pytest.fixture
def gateway(redis_url: str, collector: Collector) -> Iterator[str]:
    with serving(GatewaySettings(redis_url=redis_url)) as url:
        yield url


def submit(url: str, trace: TraceContext | None = CALLER, **body: Any) -> str:
    headers = {"traceparent": str(trace)} if trace is not None else {}
    body = {"model": "demo", "prompt": [7, 8, 9], "sampling": LONG, **body}
    answer = httpx.post(f"{url}/v1/jobs", json=body, headers=headers, timeout=STALL_S).raise_for_status()
    return str(answer.json()["id"])


def killed_twice(queue: Queue, start_worker: Any, job: str) -> list[str]:
    """Have the job run by three workers, the first two of which are killed. Their ids."""
    workers = []
    for number in range(3):
        worker = start_worker("step_seconds=0.02" if number < 2 else "step_seconds=0.001").wait_ready()
        workers.append(worker.id)
        before = queue.stored(job)
        if number < 2:
            eventually(lambda before=before: queue.stored(job) > before + 3)
            worker.send(signal.SIGKILL)
    assert queue.wait(job).usage.completion_tokens == 60
    return workers


def check_attempts(collector: Collector, job: str, trace_id: str, parent_id: str, workers: list[str]) -> None:
    """Spans of a job's attempts, each linked to the one before, all below the one that submitted it."""
    processes = collector.named("process demo")
    assert [span.attributes["octavo.attempt"] for span in processes] == [1, 2, 3]
    assert [span.attributes["octavo.worker.id"] for span in processes] == workers
    assert {span.parent_id for span in processes} == {parent_id}
    assert [span.links for span in processes] == [(), *(((trace_id, span.span_id),) for span in processes[:2])]
    assert [span.is_error for span in processes] == [True, True, False]
    assert [span.attributes.get("error.type") for span in processes] == ["lapsed", "lapsed", None]
    waits = collector.named("wait")
    assert {span.parent_id for span in waits} == {parent_id}
    for wait, process in zip(waits, processes, strict=True):
        assert wait.end == pytest.approx(process.start, abs=0.001)
    assert [span.parent_id for span in collector.named("prefill")] == [processes[0].span_id, processes[2].span_id]
    assert [span.parent_id for span in collector.named("decode")] == [processes[0].span_id, processes[2].span_id]
    last = processes[-1]
    assert last.attributes["octavo.tokens.after"] == last.attributes["gen_ai.usage.output_tokens"] == 60
    assert last.attributes["octavo.tokens.before"] == processes[1].attributes["octavo.tokens.after"]
    assert last.attributes["gen_ai.response.finish_reasons"] == ["length"]
    for span in processes:
        assert span.kind == "consumer"
        assert span.attributes.keys() >= REQUIRED
        assert span.attributes["messaging.message.id"] == span.attributes["gen_ai.response.id"] == job
        assert span.end >= span.start
    ours = [span for span in collector.spans if span.service == "octavo-worker"]
    assert {span.trace_id for span in ours} == {trace_id}
    assert len({span.span_id for span in ours}) == len(ours) == 10, "each is told once"
    assert {name for span in ours for name in span.attributes} <= NAMES
    assert not {name for span in ours for name in span.attributes if "messages" in name}


def test_a_job_over_three_workers_is_one_trace_through_http(
    queue: Queue, start_worker, gateway: str, collector: Collector
) -> None:
    job = submit(gateway)
    workers = killed_twice(queue, start_worker, job)
    eventually(lambda: len(collector.named("process demo")) == 3 and len(collector.named("decode")) == 2)
    (served,), (sent,) = collector.named("POST /v1/jobs"), collector.named("send demo")
    assert (served.trace_id, served.parent_id, served.kind) == (CALLER.trace_id, CALLER.span_id, "server")
    assert served.attributes["http.response.status_code"] == 202
    assert (sent.parent_id, sent.kind) == (served.span_id, "producer")
    check_attempts(collector, job, CALLER.trace_id, sent.span_id, workers)
    info = httpx.get(f"{gateway}/v1/jobs/{job}", timeout=STALL_S).json()
    assert info["trace_id"] == CALLER.trace_id


async def test_a_job_over_three_workers_is_one_trace_through_the_python_client(
    queue: Queue, start_worker, redis_url: str, collector: Collector
) -> None:
    provider, own = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(own))
    tracer = provider.get_tracer("application")
    async with AsyncClient(redis_url, tracer=tracer) as client:
        with tracer.start_as_current_span("work"):
            job = (await client.submit([7, 8, 9], model="demo", **LONG)).id
    workers = killed_twice(queue, start_worker, job)
    eventually(lambda: len(collector.named("process demo")) == 3 and len(collector.named("decode")) == 2)
    sent, work = own.get_finished_spans()
    assert (sent.name, sent.parent.span_id) == ("send demo", work.context.span_id)
    assert sent.attributes["messaging.destination.name"] == "demo"
    ids = f"{sent.context.trace_id:032x}", f"{sent.context.span_id:016x}"
    check_attempts(collector, job, *ids, workers)


def test_the_blocking_client_has_the_trace_of_its_thread(queue: Queue, redis_url: str) -> None:
    tracer = TracerProvider().get_tracer("application")
    with Client(redis_url) as client, tracer.start_as_current_span("work") as work:
        job = client.submit([7], model="demo")
    context = TraceContext.read(queue.field(job.id, "tp") or "")
    assert context is not None
    assert context.trace_id == f"{work.get_span_context().trace_id:032x}"


async def test_without_a_current_span_there_is_no_trace(queue: Queue, redis_url: str) -> None:
    assert not trace.get_current_span().get_span_context().is_valid
    async with AsyncClient(redis_url) as client:
        job = await client.submit([7], model="demo")
        given = await client.submit([7], model="demo", trace=str(CALLER))
        broken = await client.submit([7], model="demo", trace="00-of-no-use")
    assert queue.field(job.id, "tp") is None
    assert queue.field(broken.id, "tp") is None
    assert queue.field(given.id, "tp") == str(CALLER)


def test_a_gateway_that_exports_nothing_passes_the_caller_s_context_on(queue: Queue, redis_url: str) -> None:
    with serving(GatewaySettings(redis_url=redis_url)) as url:
        assert queue.field(submit(url), "tp") == str(CALLER)
        assert queue.field(submit(url, trace=None), "tp") is None


def test_what_its_caller_does_not_record_no_worker_records(
    queue: Queue, start_worker, gateway: str, collector: Collector
) -> None:
    start_worker().wait_ready()
    silent = submit(gateway, CALLER._replace(is_sampled=False))
    queue.wait(silent)
    recorded = submit(gateway, CALLER._replace(span_id="1" * 16))
    queue.wait(recorded)
    eventually(lambda: collector.named("decode"))
    assert (queue.field(silent, "tp") or "").endswith("-00")
    assert {span.attributes.get("messaging.message.id") for span in of_workers(collector)} == {recorded}


TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
CALL = 'Let me look at the clock on the wall.<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def test_calls_of_tools_are_a_part_of_their_attempt(
    redis_url: str, gateway: str, collector: Collector, tmp_path: Path
) -> None:
    with scripted_model(redis_url, tmp_path, "hermes", CALL, step_seconds=0.02):
        asked = {"model": "hermes", "messages": [{"role": "user", "content": "What time is it?"}], "tools": [TOOL]}
        headers = {"traceparent": str(CALLER)}
        url = f"{gateway}/v1/chat/completions"
        answer = httpx.post(url, json=asked, headers=headers, timeout=STALL_S).raise_for_status().json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "now"
        eventually(lambda: collector.named("tool calls"))
    (part,), (process,), (decode,) = (collector.named(name) for name in ("tool calls", "process hermes", "decode"))
    assert (part.trace_id, part.parent_id) == (CALLER.trace_id, process.span_id)
    assert decode.start < part.start < part.end
    assert part.end == pytest.approx(decode.end, abs=0.001)
    context = TraceContext(part.trace_id, process.span_id, True)
    assert part.span_id == context.derived(process.attributes["messaging.message.id"], 1, "tool calls").span_id
    assert part.attributes.keys() <= NAMES


def test_where_no_tool_is_called_no_part_tells_of_it(
    redis_url: str, gateway: str, collector: Collector, tmp_path: Path
) -> None:
    with scripted_model(redis_url, tmp_path, "hermes", "It is noon."):
        asked = {"model": "hermes", "messages": [{"role": "user", "content": "What time is it?"}], "tools": [TOOL]}
        headers = {"traceparent": str(CALLER)}
        url = f"{gateway}/v1/chat/completions"
        for number in (1, 2):  # all that is told of the first is here with the second
            httpx.post(url, json=asked, headers=headers, timeout=STALL_S).raise_for_status()
            eventually(lambda number=number: len(collector.named("decode")) == number)
    assert collector.named("tool calls") == []


def of_workers(collector: Collector) -> list[Seen]:
    return [span for span in collector.spans if span.service == "octavo-worker"]


def test_a_request_that_comes_without_a_trace_begins_one(
    queue: Queue, start_worker, gateway: str, collector: Collector
) -> None:
    start_worker().wait_ready()
    queue.wait(submit(gateway, None))
    eventually(lambda: collector.named("decode"))
    (served,) = collector.named("POST /v1/jobs")
    assert served.parent_id == ""
    assert {span.trace_id for span in collector.spans} == {served.trace_id}


def test_a_worker_tells_of_what_it_gave_back(
    queue: Queue, start_worker, gateway: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")  # of the first worker: only its end sends anything
    first = start_worker("step_seconds=0.02", grace=0).wait_ready()
    job = submit(gateway)
    eventually(lambda: queue.stored(job) > 3)
    first.send(signal.SIGTERM)
    assert first.wait() == 0
    assert collector.named("process demo"), "it told before it left"
    collector.asked(monkeypatch)
    second = start_worker("step_seconds=0.02").wait_ready()
    eventually(lambda: queue.stored(job) > 10)
    os.kill(second.engine_pid, signal.SIGKILL)
    assert queue.wait(job).usage.completion_tokens == 60
    eventually(lambda: len(collector.named("process demo")) == 3)
    processes = collector.named("process demo")
    assert [span.attributes["octavo.attempt.end"] for span in processes] == ["back", "killed", "completed"]
    assert [span.is_error for span in processes] == [False, True, False]
    assert [len(span.links) for span in processes] == [0, 1, 1]


def test_content_is_there_only_where_it_is_asked_for(
    queue: Queue, start_worker, gateway: str, collector: Collector
) -> None:
    start_worker(trace_content="true").wait_ready()
    job = submit(gateway, prompt="a secret", sampling={"max_tokens": 3, "seed": 5, "temperature": 0.5})
    text = queue.wait(job).text
    eventually(lambda: collector.named("decode"))
    (process,) = collector.named("process demo")
    (asked,) = json.loads(process.attributes["gen_ai.input.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": "a secret"}]}
    (answered,) = json.loads(process.attributes["gen_ai.output.messages"])
    assert answered["parts"] == [{"type": "text", "content": text}]
    assert process.attributes["gen_ai.request.temperature"] == 0.5
    assert process.attributes["gen_ai.request.seed"] == 5


@pytest.mark.parametrize(
    "module", ["octavo_worker.agent.supervisor", "octavo_gateway.app", "octavo.service.clerk.process"]
)
def test_nothing_is_imported_where_no_variable_asks(module: str) -> None:
    code = (
        f"import sys, {module}; from octavo.service.tracing.wanted import open_tracing; "
        "assert open_tracing('a', 'b') is None; "
        "ours = {'octavo.service.tracing.tracing', 'opentelemetry.exporter', 'opentelemetry.sdk.trace'}; "
        "assert not ours & set(sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=STALL_S)


@pytest.mark.parametrize(
    "text",
    [
        *("", "00", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", "00-" + "0" * 32 + "-b7ad6b7169203331-01"),
        *("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01", f"{CALLER}-more", "ff" + str(CALLER)[2:]),
        *(str(CALLER).upper(), f" {CALLER}", str(CALLER) + "\n"),
    ],
)
def test_what_is_no_context(text: str) -> None:
    assert TraceContext.read(text) is None


def test_a_later_version_may_say_more() -> None:
    assert TraceContext.read("01" + str(CALLER)[2:-2] + "03-more") == CALLER
    assert str(CALLER) == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
