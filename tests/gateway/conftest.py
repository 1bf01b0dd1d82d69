"""A real gateway on a real port over the real server; only the model behind it is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_process import GatewayProcess
from scripted_models import scripted_model
from scripted_worker import ScriptedWorker
from serving import serving
from waiting import STALL_S
from worker_process import WorkerProcess

from octavo.service.server import EmbeddedServer
from octavo_gateway.settings import GatewaySettings


@pytest.fixture(scope="module")
def shared_gateway(server: EmbeddedServer) -> Iterator[str]:
    """Its reaper works on the server until it ends, so no longer than a module's tests, which expect it."""
    with serving(GatewaySettings(redis_url=server.url, keep_alive=0.2)) as url:
        yield url


@pytest.fixture
def gateway_url(shared_gateway: str, redis_url: str) -> str:
    """A gateway over an empty database. Its streams get a comment after 0.2 s of silence."""
    return shared_gateway


@pytest.fixture
async def http(gateway_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway_url, timeout=STALL_S) as client:
        yield client


@pytest.fixture
async def ai(gateway_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway_url}/v1", api_key="none", max_retries=0, timeout=STALL_S
    ) as client:
        yield client


@pytest.fixture
async def worker(gateway_url: str, redis_url: str) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(redis_url) as running:
        yield running


@pytest.fixture
def gateway_process(redis_url: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that a test may end."""
    with GatewayProcess(redis_url, tmp_path / "gateway.log") as process:
        yield process


@pytest.fixture
def own_gateway(redis_url: str) -> Iterator[Callable[..., str]]:
    """Start gateways with settings of the test's own."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(serving(GatewaySettings(**{"redis_url": redis_url, **settings})))


@pytest.fixture
def start_model(redis_url: str, tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Start a worker whose model is of a family and always writes `text`, or `reply` after results of tools."""
    with ExitStack() as stack:

        def start(name: str, text: str, **more: Any) -> WorkerProcess:
            return stack.enter_context(scripted_model(redis_url, tmp_path, name, text, **more))

        yield start
