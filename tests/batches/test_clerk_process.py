"""Clerks as processes: beside a gateway, and by themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest
import redis
from clerks import begin, encoded, line, lines_of, reach
from gateway_process import GatewayProcess
from scripted_worker import ScriptedWorker
from waiting import STALL_S, eventually, until


def clerks_of(gateway: GatewayProcess) -> list[psutil.Process]:
    parent = psutil.Process(gateway.process.pid)
    return [child for child in parent.children() if "octavo.service.clerk" in child.cmdline()]


@pytest.fixture
def flags(folder: Path) -> list[str]:
    return ["--files", str(folder)]


@pytest.fixture
def beside(redis_url: str, tmp_path: Path, flags: list[str]) -> Iterator[GatewayProcess]:
    with GatewayProcess(redis_url, tmp_path / "gateway.log", *flags) as process:
        yield process


def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=STALL_S)


async def test_a_gateway_has_a_clerk_which_comes_back_and_ends_with_it(beside: GatewayProcess, redis_url: str) -> None:
    url = await beside.url()
    await until(lambda: clerks_of(beside))
    (first,) = clerks_of(beside)
    first.kill()
    async with client(url) as ai, ScriptedWorker(redis_url):
        made = await begin(ai, encoded(*(line(f"{number}") for number in range(100))))
        batch = await reach(ai, made.id, "completed")
        assert len(await lines_of(ai, batch.output_file_id)) == 100
    (second,) = clerks_of(beside)
    assert second.pid != first.pid
    assert await beside.stop() in (0, -signal.SIGTERM)
    eventually(lambda: not second.is_running())


@pytest.mark.full
async def test_a_clerk_ends_with_a_gateway_that_is_killed_and_gives_its_batches_back(
    beside: GatewayProcess, redis_url: str, redis_sync: redis.Redis
) -> None:
    url = await beside.url()
    async with client(url) as ai, ScriptedWorker(redis_url, hold_after=0):
        made = await begin(ai, encoded(line("a")))
        await reach(ai, made.id, "in_progress")
        (clerk,) = clerks_of(beside)
        assert redis_sync.zcard("{c00}:btL") == 1
        metrics = (await httpx.AsyncClient(timeout=STALL_S).get(f"{url}/metrics")).text
        assert 'octavo_batches{state="owned"} 1.0' in metrics
        beside.kill()
        eventually(lambda: not clerk.is_running())
    assert redis_sync.zcard("{c00}:btL") == 0
    assert redis_sync.zrange("{c00}:bts", 0, -1) == [made.id.encode()]


async def test_a_gateway_may_be_without_a_clerk_and_one_run_elsewhere(
    redis_url: str, tmp_path: Path, flags: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "octavo.service.clerk"]
    environment = {"OCTAVO_FILES": flags[1], "OCTAVO_REDIS_URL": redis_url, "OCTAVO_METRICS_PORT": str(port)}
    with GatewayProcess(redis_url, tmp_path / "gateway.log", *flags, "--no-clerk") as gateway:
        url = await gateway.url()
        async with client(url) as ai, ScriptedWorker(redis_url):
            made = await begin(ai, encoded(line("a")))
            await asyncio.sleep(1.0)
            assert (await ai.batches.retrieve(made.id)).status == "validating"
            assert clerks_of(gateway) == []
            clerk = await asyncio.to_thread(
                subprocess.Popen, command, env=os.environ | environment, stderr=subprocess.PIPE, text=True
            )
            await reach(ai, made.id, "completed")
        metrics = (await httpx.AsyncClient(timeout=STALL_S).get(f"http://127.0.0.1:{port}/metrics")).text
        assert 'octavo_clerk_lines_total{outcome="completed"} 1.0' in metrics
        assert 'octavo_clerk_batches_ended_total{status="completed"} 1.0' in metrics
        clerk.send_signal(signal.SIGTERM)
        _, said = await asyncio.to_thread(clerk.communicate, timeout=STALL_S)
    assert clerk.returncode == 0
    assert "gave its batches back" in said
    assert "hello" not in said


def test_a_clerk_without_files_says_what_to_set(redis_url: str) -> None:
    command = [sys.executable, "-m", "octavo.service.clerk"]
    environment = {name: value for name, value in os.environ.items() if name != "OCTAVO_FILES"}
    done = subprocess.run(
        command, env={**environment, "OCTAVO_REDIS_URL": redis_url}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "OCTAVO_FILES" in done.stderr
