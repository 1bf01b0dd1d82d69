"""The gateway as processes: how they end, share a port and add up their counts."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable

import httpx
import openai
import psutil
import pytest
from exposition import sample
from gateway_process import GatewayProcess
from scripted_worker import MODEL, ScriptedWorker, whole_text
from sse import read_events
from waiting import STALL_S, until

HELLO_JOB = {"model": MODEL, "prompt": "hello"}
HELLO = {**HELLO_JOB, "max_tokens": 3}


async def test_sigterm_ends_job_streams_between_two_events_and_lets_requests_finish(redis_url, tmp_path):
    gateway = GatewayProcess(redis_url, tmp_path / "log", own_start=True)
    try:
        url = await gateway.url()
        async with (
            ScriptedWorker(redis_url, hold_after=2) as worker,
            httpx.AsyncClient(base_url=url, timeout=STALL_S) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as ai,
        ):
            job = (await until(lambda: _submitted(http))).json()
            completion = await ai.completions.create(**HELLO, stream=True)
            events = []
            async with http.stream("GET", job["links"]["stream"]) as response:
                async for event in read_events(response):
                    events.append(event)
                    if event.id == "2":
                        gateway.process.send_signal(signal.SIGTERM)
            assert [event.id for event in events if event.event] == ["1", "2"]  # whole, and without an end
            worker.go.set()
            assert "".join([chunk.choices[0].text async for chunk in completion]) == whole_text(3)
        await gateway.stop()
        lines = gateway.lines()
        posted = next(line for line in lines if line.get("method") == "POST" and line["status"] == 202)
        assert posted["request_id"]
        assert posted["path"] == "/v1/jobs"
        assert "hello" not in json.dumps(lines)
    finally:
        gateway.process.kill()
        gateway.process.wait()


async def _submitted(http: httpx.AsyncClient) -> httpx.Response | None:
    try:
        reply = await http.post("/v1/jobs", json=HELLO_JOB)
    except httpx.TransportError:  # of several processes none listens yet
        return None
    return reply if reply.status_code == 202 else None


@pytest.mark.full
async def test_several_processes_share_a_port_and_their_counts(redis_url, tmp_path):
    gateway = GatewayProcess(redis_url, tmp_path / "log", "--workers", "2", own_start=True)
    try:
        url = await gateway.url()
        async with ScriptedWorker(redis_url):

            async def ask() -> int:
                async with httpx.AsyncClient(
                    base_url=url, timeout=STALL_S
                ) as http:  # a connection of its own each time
                    return (await http.post("/v1/completions", json=HELLO)).status_code

            async def up() -> bool:
                try:
                    return await ask() == 200
                except httpx.TransportError:
                    return False

            await until(up)
            assert [await ask() for _ in range(9)] == [200] * 9

            async def count() -> float:
                async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
                    return sample((await http.get("/metrics")).text, "octavo_http_requests_total", route="/v1/models")

            for _ in range(10):
                async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
                    assert (await http.get("/v1/models")).status_code == 200

            async def all_counted() -> bool:  # that is done behind the answer
                return await count() == 10

            await until(all_counted)
        assert await gateway.stop() == 0
    finally:
        gateway.process.kill()
        gateway.process.wait()


@pytest.mark.full
async def test_streams_of_a_process_that_was_killed_are_not_open(redis_url, tmp_path):
    gateway = GatewayProcess(redis_url, tmp_path / "log", "--workers", "2", own_start=True)
    try:
        url = await gateway.url()

        async def open_streams() -> float:
            async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
                return sample((await http.get("/metrics")).text, "octavo_sse_connections")

        async with contextlib.AsyncExitStack() as streams, ScriptedWorker(redis_url, hold_after=1):
            for _ in range(8):  # a connection each, so that both processes have some
                http = await streams.enter_async_context(httpx.AsyncClient(base_url=url, timeout=STALL_S))
                job = (await until(lambda http=http: _submitted(http))).json()
                await streams.enter_async_context(http.stream("GET", job["links"]["stream"]))
            assert await open_streams() == 8
            child = max(psutil.Process(gateway.process.pid).children(), key=lambda child: child.create_time())
            child.kill()
        await until(lambda: _is_zero(open_streams))
    finally:
        gateway.process.kill()
        gateway.process.wait()


async def _is_zero(count: Callable[[], Awaitable[float]]) -> bool:
    try:
        return await count() == 0
    except httpx.TransportError:
        return False


async def test_no_process_of_a_gateway_outlives_the_one_that_started_it(redis_url, tmp_path):
    gateway = GatewayProcess(redis_url, tmp_path / "log", "--workers", "2", own_start=True)
    started: list[psutil.Process] = []
    try:
        url = await gateway.url()

        async def serves() -> bool:
            try:
                async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
                    return (await http.get("/livez")).status_code == 200
            except httpx.TransportError:
                return False

        await until(serves)
        started = psutil.Process(gateway.process.pid).children(recursive=True)
        assert len(started) >= 2
        gateway.process.kill()
        await until(lambda: not psutil.wait_procs(started, timeout=0)[1])
        assert not await serves()
    finally:
        gateway.process.kill()
        gateway.process.wait()
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def test_wrong_flags_are_explained():
    for flags, said in ((["--port", "99999"], "--port"), (["--api-keys", "sk-mysecret"], "tenant:key")):
        done = subprocess.run(
            [sys.executable, "-m", "octavo_gateway", *flags],
            capture_output=True,
            text=True,
            timeout=STALL_S,
            check=False,
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert "mysecret" not in done.stderr


def test_the_gateway_never_imports_torch():
    code = "import sys, octavo_gateway.app, octavo_gateway.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=STALL_S).returncode == 0
