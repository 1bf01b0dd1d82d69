"""The queue's figures at a gateway, and the sums over gateways and workers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import redis
from exposition import sample
from gateway_process import GatewayProcess
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S, until
from worker_process import WorkerProcess

from octavo import AsyncClient, SamplingParams
from octavo.queue.calls import run_sync
from octavo.queue.protocol import Append, Cell
from octavo.queue.tenants.usage import Sums, grouped
from octavo.terms.messages import Chunk, JobStatus, Terminal
from octavo.terms.metrics.table import TABLE
from octavo.terms.metrics.tenants import MOST_TENANTS, OTHER
from octavo_gateway.status.tenants import largest

CELL = Cell()


async def scraped(http: httpx.AsyncClient) -> str:
    return (await http.get("/metrics")).raise_for_status().text


async def known(redis_url: str) -> None:
    async with ScriptedWorker(redis_url):
        pass


async def test_what_waits_is_told_by_class(http: httpx.AsyncClient, redis_url: str, redis_sync: redis.Redis) -> None:
    await known(redis_url)
    async with AsyncClient(redis_url) as client:
        jobs = [await client.submit("x" * 300, model=MODEL, priority="batch", tenant=f"t{n % 2}") for n in range(4)]
        urgent = await client.submit("x" * 30, model=MODEL, priority="high")
    for job in (jobs[2], urgent):
        redis_sync.hset(CELL.keys.job(job.id), "ct", int(time.time() * 1000) - 60_000)
    estimates = [int(redis_sync.hget(CELL.keys.job(job.id), "est") or 0) for job in jobs]
    text = await scraped(http)
    assert sample(text, "octavo_queue_depth", model_name=MODEL) == 5
    assert sample(text, "octavo_queue_backlog_tokens", model_name=MODEL, priority="batch") == sum(estimates) > 300
    assert sample(text, "octavo_queue_backlog_tokens", priority="normal") == 0
    assert sample(text, "octavo_queue_oldest_wait_seconds", model_name=MODEL, priority="high") >= 60
    assert sample(text, "octavo_queue_oldest_wait_seconds", model_name=MODEL, priority="batch") >= 60
    assert sample(text, "octavo_queue_oldest_wait_seconds", model_name=MODEL, priority="normal") == 0


async def test_of_a_long_lane_a_part_stands_for_all(http: httpx.AsyncClient, redis_url: str) -> None:
    await known(redis_url)
    async with AsyncClient(redis_url) as client:
        await asyncio.gather(*(client.submit("x" * 300, model=MODEL) for _ in range(400)))
        one = await client.standing()
    assert one.waiting[MODEL, "normal"].jobs == 400
    assert one.waiting[MODEL, "normal"].tokens == pytest.approx(400 * 100, rel=0.2)


async def test_takeovers_and_refused_writes_are_counted_by_the_queue(
    http: httpx.AsyncClient, redis_url: str, redis_sync: redis.Redis
) -> None:
    await known(redis_url)
    async with AsyncClient(redis_url) as client:
        job = await client.submit("x", model=MODEL)
    claim = CELL.claim(MODEL, "one", max_jobs=1, max_tokens=100, lease_ms=60_000, idle=True)
    (claimed,) = run_sync(redis_sync, claim).jobs
    text = await scraped(http)
    assert sample(text, "octavo_takeovers_total", model_name=MODEL) == 0
    assert sample(text, "octavo_writes_refused_total", model_name=MODEL) == 0
    run_sync(redis_sync, CELL.release([(job.id, claimed.token)], why="killed"))
    again = CELL.claim(MODEL, "two", max_jobs=1, max_tokens=100, lease_ms=60_000, idle=True)
    (owner,) = run_sync(redis_sync, again).jobs
    (late,) = run_sync(redis_sync, CELL.append([Append(job.id, claimed.token, 0, Chunk(0, (1,), ("a",)))]))
    assert late.state == "fenced"
    end = Terminal(JobStatus.CANCELLED)
    assert run_sync(redis_sync, CELL.finish(job.id, claimed.token, end, b"")).state == "fenced"
    for _ in range(2):  # saying an end again is no refused write
        assert run_sync(redis_sync, CELL.finish(job.id, owner.token, end, b"")).state == "ok"
    (after,) = run_sync(redis_sync, CELL.append([Append(job.id, owner.token, 0, Chunk(0, (1,), ("a",)))]))
    assert after.state == "fenced"
    text = await scraped(http)
    assert sample(text, "octavo_takeovers_total", model_name=MODEL) == 1
    assert sample(text, "octavo_writes_refused_total", model_name=MODEL) == 2


async def test_a_count_that_something_else_spoiled_stops_no_call(redis_url: str, redis_sync: redis.Redis) -> None:
    await known(redis_url)
    for value in ("rubbish", "9" * 30):
        redis_sync.delete(CELL.keys.tally)
        redis_sync.hset(CELL.keys.tally, f"takeovers:{MODEL}", value)
        async with AsyncClient(redis_url) as client:
            job = await client.submit("x", model=MODEL)
            call = CELL.claim(MODEL, "one", max_jobs=1, max_tokens=100, lease_ms=60_000, idle=True)
            (claimed,) = run_sync(redis_sync, call).jobs
            assert run_sync(redis_sync, CELL.release([(job.id, claimed.token)], why="killed")) == 1
            assert (await client.standing()).takeovers == {MODEL: 1}
            await client.cancel(job.id)


async def test_dead_letters_and_the_lag_of_batches(http: httpx.AsyncClient, redis_sync: redis.Redis) -> None:
    text = await scraped(http)
    assert (sample(text, "octavo_dead_letters"), sample(text, "octavo_batch_lag_seconds")) == (0, 0)
    redis_sync.xadd(CELL.keys.dead_letters, {"id": "x"})
    redis_sync.zadd(f"{CELL.keys.prefix}:bts", {"batch_a": (time.time() - 100) * 1000, "batch_b": 1e15})
    text = await scraped(http)
    assert sample(text, "octavo_dead_letters") == 1
    assert sample(text, "octavo_batch_lag_seconds") >= 100


async def test_all_series_exist_from_the_start(http: httpx.AsyncClient, redis_url: str) -> None:
    await known(redis_url)
    text = await scraped(http)
    for metric in (*TABLE["Queue"], *TABLE["Gateways"]):
        assert f"\n{metric.samples[-1]}" in text, metric.name
    assert 'octavo_http_requests_total{method="POST",route="/v1/chat/completions",status="500"} 0.0' in text
    assert f'octavo_jobs_submitted_total{{model_name="{MODEL}",priority="batch"}} 0.0' in text


@pytest.fixture
def fleet(redis_url: str, tmp_path: Path) -> Iterator[Callable[[], tuple[list[GatewayProcess], list[int]]]]:
    with ExitStack() as stack:

        def start() -> tuple[list[GatewayProcess], list[int]]:
            gateways = [stack.enter_context(GatewayProcess(redis_url, tmp_path / f"gateway{n}.log")) for n in range(2)]
            ports = []
            for n in range(3):
                with socket.create_server(("127.0.0.1", 0)) as probe:
                    ports.append(probe.getsockname()[1])
                worker = WorkerProcess(
                    redis_url, tmp_path / f"worker{n}.log", fake="step_seconds=0.001", metrics_port=ports[-1]
                )
                stack.enter_context(worker).wait_ready()
            return gateways, ports

        yield start


async def test_two_gateways_and_three_workers_add_up_to_the_truth(fleet, redis_sync: redis.Redis) -> None:
    gateways, ports = fleet()
    urls = [await gateway.url() for gateway in gateways]
    async with httpx.AsyncClient(timeout=STALL_S) as http:

        async def all_of(addresses: list[str]) -> list[str]:
            return [(await http.get(f"{address}/metrics")).text for address in addresses]

        body = {"model": "demo", "prompt": [7, 8, 9], "max_tokens": 30, "ignore_eos": True}
        asked = [http.post(f"{urls[n % 2]}/v1/completions", json=body) for n in range(24)]
        answers = [reply.raise_for_status().json() for reply in await asyncio.gather(*asked)]
        generated = sum(answer["usage"]["completion_tokens"] for answer in answers)
        workers = [f"http://127.0.0.1:{port}" for port in ports]

        async def all_ended() -> bool:
            return _sum(await all_of(workers), "octavo_request_success_total") == 24

        await until(all_ended)
        of_workers, of_gateways = await all_of(workers), await all_of(urls)
    assert generated == 720
    assert _sum(of_workers, "octavo_generation_tokens_total") == generated
    assert _sum(of_workers, "octavo_request_generation_tokens_sum") == generated
    assert _sum(of_workers, "octavo_prompt_tokens_total") == 72
    assert _sum(of_workers, "octavo_request_queue_time_seconds_count") == 24
    assert _sum(of_gateways, "octavo_jobs_submitted_total") == 24
    assert _sum(of_gateways, "octavo_http_request_success_total") == 24
    assert _sum(of_gateways, "octavo_http_requests_total", route="/v1/completions", status="200") == 24
    assert [sample(text, "octavo_workers") for text in of_gateways] == [3, 3]
    assert not any("octavo_generation_tokens" in text for text in of_gateways), "each worker is counted once"


def _sum(texts: list[str], name: str, **labels: str) -> float:
    return sum(sample(text, name, **labels) for text in texts)


def test_of_many_tenants_the_largest_have_series_and_the_rest_is_one() -> None:
    sums = {f"t{number}": Sums(input_tokens=number, output_tokens=1, requests=1) for number in range(MOST_TENANTS + 3)}
    found = largest(sums | {OTHER: Sums(output_tokens=500, requests=1)})
    assert len(found) == MOST_TENANTS
    assert found[OTHER] == Sums(input_tokens=0 + 1 + 2 + 3, output_tokens=500 + 4, requests=5)
    assert found["t102"].input_tokens == 102
    assert sum(of.input_tokens for of in found.values()) == sum(range(MOST_TENANTS + 3))


async def test_tenants_have_series_where_the_gateway_was_told_so_alone(
    http: httpx.AsyncClient, own_gateway: Callable[..., str], redis_url: str
) -> None:
    async with ScriptedWorker(redis_url), AsyncClient(redis_url) as client:
        for _ in range(2):
            job = await client.submit("hello", model=MODEL, tenant="acme", sampling=SamplingParams(max_tokens=3))
            await job.result(timeout=STALL_S)
        (row,) = grouped(await client.tenants.usage(0, time.time() + 60), lambda row: row.tenant).values()
    assert "octavo_tenant_" not in await scraped(http)
    async with httpx.AsyncClient(base_url=own_gateway(metrics_by_tenant=True), timeout=STALL_S) as told:
        text = await scraped(told)
        assert sample(text, "octavo_tenant_requests", tenant="acme") == 2
        assert sample(text, "octavo_tenant_tokens", tenant="acme", kind="output") == row.output_tokens > 0
        assert sample(text, "octavo_tenant_tokens", tenant="acme", kind="input") == row.input_tokens > 0
        assert sample(text, "octavo_tenant_failures", tenant="acme") == 0
        assert sample(text, "octavo_tenant_requests", tenant="other") == 0
