"""The whole service on one machine: server, gateway, one worker as real processes, and this process as the client."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from octavo import AsyncClient
from octavo.models import JobRequest, SamplingParams
from octavo.server import EmbeddedServer
from octavo_worker.bench.engine import Timing
from octavo_worker.bench.workloads import Work

START_TIMEOUT_S = 300.0


class ServiceBench:
    """A running service with one model; `run` submits a workload and follows every stream to its end."""

    def __init__(self, redis_url: str, gateway_url: str, model: str) -> None:
        self._redis_url = redis_url
        self._http = httpx.Client(base_url=gateway_url, timeout=60)
        self._model = model

    def run(self, work: list[Work], *, salt: int) -> Timing:
        """Each run is another tenant's, so that it finds nothing of the run before in the prefix cache."""
        return asyncio.run(self._run(work, f"bench{salt}"))

    async def _run(self, work: list[Work], tenant: str) -> Timing:
        timing = Timing()
        async with AsyncClient(self._redis_url) as client:
            await client.models()  # connected before the clock starts
            started = time.perf_counter()
            jobs = await client.submit_many([self._request(w) for w in work], tenant=tenant, follow=True)

            async def follow(number: int) -> None:
                last = None
                async for event in jobs[number].stream():
                    now = time.perf_counter() - started
                    timing.generated += len(event.token_ids)
                    if last is None:
                        timing.first_token.append(now)
                    else:
                        timing.between_tokens.append((now - last) / max(1, len(event.token_ids)))
                    last = now

            await asyncio.gather(*(follow(number) for number in range(len(jobs))))
            timing.seconds = time.perf_counter() - started
        return timing

    def _request(self, work: Work) -> JobRequest:
        sampling = SamplingParams(max_tokens=work.max_tokens, temperature=0.0, ignore_eos=True)
        return JobRequest(model=self._model, prompt=tuple(work.prompt), sampling=sampling)

    def first_token_seconds(self, work: Work) -> float:
        """From a `POST /v1/completions` on an open connection to its first streamed token."""
        body = {
            "model": self._model,
            "prompt": work.prompt,
            "max_tokens": 1,  # its end comes with it: a model without a tokenizer streams no text otherwise
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        elapsed = None
        started = time.perf_counter()
        with self._http.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if elapsed is None and line.startswith("data: "):
                    elapsed = time.perf_counter() - started
        if elapsed is None:
            raise RuntimeError("the stream ended without a token")
        return elapsed


@contextmanager
def service(model: Path, flags: list[str]) -> Iterator[ServiceBench]:
    """Start everything for `model` and wait until the gateway is ready; stop it all at the end."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(EmbeddedServer(data_dir=Path(folder)))
        port = _free_port()
        environment = os.environ | {"REDIS_URL": server.url, "OCTAVO_LOG_LEVEL": "warning"}
        commands = [
            ["-m", "octavo_gateway", "--port", str(port)],
            ["-m", "octavo_worker", "--model", str(model), *flags],
        ]
        for command in commands:
            process = subprocess.Popen([sys.executable, *command], env=environment)
            stack.callback(_stop, process)
        gateway_url = f"http://127.0.0.1:{port}"
        _wait_ready(gateway_url)
        yield ServiceBench(server.url, gateway_url, _served_model(gateway_url))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_ready(gateway_url: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{gateway_url}/readyz", timeout=5)
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"the service was not ready within {START_TIMEOUT_S:.0f} s")


def _served_model(gateway_url: str) -> str:
    with urllib.request.urlopen(f"{gateway_url}/v1/models", timeout=5) as response:
        return str(json.load(response)["data"][0]["id"])
