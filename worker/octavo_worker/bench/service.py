"""The whole service on one machine: server, gateway, one worker as real processes, and this process as the client.

The client shares the cores with what it measures, so it does as little as it can.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from octavo import AsyncClient
from octavo.service.server import EmbeddedServer
from octavo.terms.errors import OctavoError
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo_worker.bench.engine import Timing
from octavo_worker.bench.workloads import Work

START_TIMEOUT_S = 300.0
LAST_LINES = 15


class ServiceFailed(Exception):
    """The service did not start; the message says why."""


class Child:
    """A process of the service, started with `python *command`. What it writes goes to a file in `folder`."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self._name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, *command], env=environment, stdout=log, stderr=log)

    def check(self) -> None:
        """`ServiceFailed` with its last lines if it has ended."""
        if (status := self.process.poll()) is not None:
            lines = self._log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            raise ServiceFailed("\n".join([f"the {self._name} ended with status {status}:", *lines]))

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class ServiceBench:
    """A running service with one model, and the connections of a client that has been there for a while."""

    def __init__(self, redis_url: str, gateway_url: str, model: str, processes: dict[str, psutil.Process]) -> None:
        self.redis_url, self.gateway_url = redis_url, gateway_url
        self._http = http.client.HTTPConnection(urlsplit(gateway_url).netloc, timeout=60)
        self._model = model
        self._processes = processes
        self._runner = asyncio.Runner()
        self._client = self._runner.run(_connected(redis_url))

    def close(self) -> None:
        self._http.close()
        self._runner.run(self._client.close())
        self._runner.close()

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time of every process of the service so far, and of this one as `client`."""
        spent = {name: _cpu_seconds(process) for name, process in self._processes.items()}
        engine = sum(_cpu_seconds(child) for child in self._processes["agent"].children())
        return spent | {"engine": engine, "client": time.process_time()}

    def run(self, work: list[Work], *, salt: int) -> Timing:
        """Submit everything and follow every stream to its end. Each run is another tenant's, so that it finds nothing
        of the run before in the prefix cache."""
        return self._runner.run(self._run(work, f"bench{salt}"))

    async def _run(self, work: list[Work], tenant: str) -> Timing:
        timing = Timing()
        started = time.perf_counter()
        jobs = await self._client.submit_many([self._request(w) for w in work], tenant=tenant, follow=True)

        async def follow(number: int) -> None:
            job, last = jobs[number], None
            if isinstance(job, OctavoError):
                raise job
            async for event in job.stream():
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

    def first_token_direct(self, work: Work) -> float:
        """Seconds from a submission to its first event, without a gateway."""
        return self._runner.run(self._first_event(work))

    async def _first_event(self, work: Work) -> float:
        started = time.perf_counter()
        job = await self._client.submit(self._request(work), follow=True)
        elapsed = None
        async for _ in job.events():
            elapsed = elapsed or time.perf_counter() - started
        assert elapsed is not None, "a stream has an end at least"
        return elapsed

    def first_token_http(self, work: Work) -> float:
        """Seconds from a `POST /v1/completions` on an open connection to its first streamed token."""
        body = {
            "model": self._model,
            "prompt": work.prompt,
            "max_tokens": 1,  # its end comes with it: a model without a tokenizer streams no text otherwise
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        content = json.dumps(body).encode()
        started = time.perf_counter()
        self._http.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
        response = self._http.getresponse()
        line = response.readline()
        elapsed = time.perf_counter() - started
        rest = response.read()
        if response.status != 200 or not line.startswith(b"data: "):
            raise RuntimeError(f"expected a stream of tokens, got {response.status}: {line!r} {rest!r}")
        return elapsed


async def _connected(redis_url: str) -> AsyncClient:
    client = AsyncClient(redis_url)
    await client.models()
    return client


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def service(model: Path, flags: list[str]) -> Iterator[ServiceBench]:
    """Start everything for `model` and wait until the gateway is ready; stop it all at the end, a SIGTERM included. For
    the main thread."""
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _leave))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(EmbeddedServer(data_dir=Path(folder)))
        port = _free_port()
        environment = os.environ | {"REDIS_URL": server.url, "OCTAVO_LOG_LEVEL": "warning"}
        commands = {
            "gateway": ["-P", "-m", "octavo_gateway", "--port", str(port)],
            "agent": ["-P", "-m", "octavo_worker", "--model", str(model), *flags],
        }
        processes = {"server": psutil.Process(server.pid)}
        children = []
        for name, command in commands.items():
            children.append(child := Child(name, command, environment, Path(folder)))
            stack.callback(child.stop)
            processes[name] = psutil.Process(child.process.pid)
        gateway_url = f"http://127.0.0.1:{port}"
        _wait_ready(gateway_url, children)
        bench = ServiceBench(server.url, gateway_url, _served_model(gateway_url), processes)
        stack.callback(bench.close)
        yield bench


def _leave(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(gateway_url: str, children: list[Child]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        for child in children:
            child.check()
        try:
            urllib.request.urlopen(f"{gateway_url}/readyz", timeout=5)
            return
        except OSError:
            time.sleep(0.2)
    raise ServiceFailed(f"the service was not ready within {START_TIMEOUT_S:.0f} s")


def _served_model(gateway_url: str) -> str:
    with urllib.request.urlopen(f"{gateway_url}/v1/models", timeout=5) as response:
        return str(json.load(response)["data"][0]["id"])
