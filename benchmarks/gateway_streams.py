"""Open event streams on one gateway process: events a second, lag from append to client, memory.

    python benchmarks/gateway_streams.py --streams 1000 --rate 10 --seconds 10

A feeder plays the worker: it appends one token to every job each `1 / rate` seconds, through the real protocol, with
the time in its text. Readers are a process of their own. `--rate 0` appends as fast as the feeder can.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import platform
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.request import urlopen

import psutil
import typer

from octavo import AsyncClient, JobRequest, SamplingParams
from octavo.queue import wire
from octavo.queue.calls import run, run_many
from octavo.queue.connection import connect
from octavo.queue.protocol import MAX_APPENDS, Append, Cell, Claim
from octavo.service.server import EmbeddedServer
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.workers import ModelCard
from octavo_worker.bench.report import encode, write

MODEL = "bench"
LEASE_MS = 120_000
STAMP = re.compile(rb'"text":" ([0-9.]+)"')


def main(
    streams: Annotated[int, typer.Option(help="Open streams.")] = 1000,
    rate: Annotated[float, typer.Option(help="Tokens a second of each stream; 0: as fast as possible.")] = 10.0,
    seconds: Annotated[float, typer.Option(help="How long tokens are appended.")] = 10.0,
    out: Annotated[Path | None, typer.Option(help="JSON file to write; stdout always gets it too.")] = None,
) -> None:
    """Measure and print JSON."""
    with EmbeddedServer() as server, gateway(server.url) as (url, process):
        figures = asyncio.run(measure(server.url, url, process, streams, rate, seconds))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    origin = {"command": " ".join(["python", *sys.argv]), "date": date, "machine": machine()}
    print(encode(origin | figures))
    if out is not None:
        write(origin | figures, out)


def machine() -> dict[str, Any]:
    return {"cpus": psutil.cpu_count(), "arch": platform.machine(), "python": platform.python_version()}


@contextmanager
def gateway(redis_url: str):
    """One gateway process: its address and its psutil handle."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--port", str(port), "--redis-url", redis_url, "--log-level", "error"]
    child = subprocess.Popen([sys.executable, "-m", "octavo_gateway", *flags])
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url)
        yield url, psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait(15)


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            urlopen(f"{url}/livez", timeout=1)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


async def measure(
    redis_url: str, url: str, process: psutil.Process, streams: int, rate: float, seconds: float
) -> dict[str, Any]:
    feeder = Feeder(redis_url)
    job_ids = await feeder.prepare(streams)
    parent, child = multiprocessing.Pipe()
    reader = multiprocessing.get_context("spawn").Process(target=read_all, args=(url, job_ids, child))
    reader.start()
    assert await asyncio.to_thread(parent.recv) == "open"
    before = process.cpu_times()
    started = time.monotonic()
    appended = await feeder.feed(rate, seconds)
    await feeder.finish()
    received, lags, ended = await asyncio.to_thread(parent.recv)
    wall = ended - started
    after = process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    reader.join()
    await feeder.close()
    assert received == appended, f"{received} of {appended} events arrived"
    lags.sort()
    return {
        "streams": streams,
        "rate_per_stream": rate,
        "events": received,
        "seconds": round(wall, 2),
        "events_per_s": round(received / wall),
        "lag_ms": {name: round(1000 * lags[int(q * (len(lags) - 1))], 1) for name, q in QUANTILES.items()},
        "gateway_cpu_share": round(cpu / wall, 2),
        "gateway_cpu_us_per_event": round(1e6 * cpu / received, 1),
        "gateway_rss_mib": round(process.memory_info().rss / 2**20),
    }


QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


class Feeder:
    """All jobs' worker."""

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url
        self._redis = connect(redis_url)
        self._cell = Cell()
        self._claims: list[Claim] = []
        self._offset = 0

    async def prepare(self, jobs: int) -> list[str]:
        """Submit and claim. The jobs' ids."""
        card = ModelCard(name=MODEL, max_model_len=1 << 20, vocab_size=256, has_tokenizer=True, created_at=time.time())
        await run(self._redis, self._cell.register_model(card))
        request = JobRequest(model=MODEL, prompt="x", sampling=SamplingParams(max_tokens=1 << 20))
        client = AsyncClient(self._url)
        handles = await client.submit_many([request] * jobs)
        await client.close()
        while len(self._claims) < jobs:
            call = self._cell.claim(MODEL, "feeder", max_jobs=64, max_tokens=1 << 30, lease_ms=LEASE_MS, idle=False)
            self._claims += (await run(self._redis, call)).jobs
        return [handle.id for handle in handles]

    async def feed(self, rate: float, seconds: float) -> int:
        """Append one token a job and round. The number of tokens appended."""
        start = time.monotonic()
        while (now := time.monotonic()) < start + seconds:
            await self._append(f" {now:.6f}")
            if rate:
                await asyncio.sleep(max(0.0, start + self._offset / rate - time.monotonic()))
        return self._offset * len(self._claims)

    async def _append(self, text: str) -> None:
        chunk = Chunk(token_ids=(1,), texts=(text,))
        items = [Append(claim.job_id, claim.token, self._offset, chunk) for claim in self._claims]
        for i in range(0, len(items), MAX_APPENDS):
            await run(self._redis, self._cell.append(items[i : i + MAX_APPENDS]))
        self._offset += 1

    async def finish(self) -> None:
        terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(completion_tokens=self._offset))
        result = wire.encode_result(terminal, [])
        for i in range(0, len(self._claims), MAX_APPENDS):
            claims = self._claims[i : i + MAX_APPENDS]
            await run_many(self._redis, [self._cell.finish(c.job_id, c.token, terminal, result) for c in claims])

    async def close(self) -> None:
        await self._redis.aclose()


def read_all(url: str, job_ids: list[str], pipe: multiprocessing.connection.Connection) -> None:
    """The readers' process: says `open` when all are connected, and at the end what it saw."""
    asyncio.run(_read_all(url, job_ids, pipe))


async def _read_all(url: str, job_ids: list[str], pipe: multiprocessing.connection.Connection) -> None:
    host, port = url.removeprefix("http://").split(":")
    lags: list[float] = []
    opened = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(_read(host, int(port), job_id, lags, opened)) for job_id in job_ids]
    for _ in tasks:
        await opened.acquire()
    await asyncio.sleep(1.0)
    pipe.send("open")
    await asyncio.gather(*tasks)
    pipe.send((len(lags), lags, time.monotonic()))


async def _read(host: str, port: int, job_id: str, lags: list[float], opened: asyncio.Semaphore) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /v1/jobs/{job_id}/stream HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await reader.readuntil(b"retry: 1000\n\n")
    opened.release()
    rest = b""
    while b"event: done" not in rest:
        data = await reader.read(1 << 16)
        if not data:
            raise RuntimeError("a stream was cut")
        now = time.monotonic()
        whole, _, tail = (rest + data).rpartition(b"\n\n")
        lags.extend(now - float(stamp) for stamp in STAMP.findall(whole))
        rest = tail if b"event: done" not in whole else whole[-200:]
    writer.close()


if __name__ == "__main__":
    typer.run(main)
