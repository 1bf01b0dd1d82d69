"""A real gateway on a real port over the real server; only the model behind it is scripted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest
from chat_templates import FAMILIES, PLAIN
from gateway_process import GatewayProcess
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

        def start(
            name: str, text: str, *, reply: str = "", number: int = 0, step_seconds: float = 0.001
        ) -> WorkerProcess:
            family = FAMILIES.get(name, PLAIN)
            folder, tokenizer = family.write(tmp_path / name), family.tokenizer()

            def written(kind: str, text: str) -> str:
                ids = [*tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id(family.end)]
                path = tmp_path / f"{kind}-{name}.json"
                path.write_text(json.dumps(ids))
                return f"{kind}={path}"

            fake = f"step_seconds={step_seconds},vocab_size={tokenizer.get_vocab_size()},folder={folder}"
            fake += f",{written('script', text)}"
            if reply:
                fake += f",{written('reply', reply)},results={tokenizer.token_to_id('<tool_response>')}"
            log = tmp_path / f"worker{number}.log"
            worker = stack.enter_context(WorkerProcess(redis_url, log, fake=fake, model=folder, lease=1.0))
            return worker.wait_ready()

        yield start
