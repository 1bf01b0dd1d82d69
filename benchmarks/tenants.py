"""Tenants beside each other: shares by weight, a neighbour beyond its limit, and one limit at four gateways.

    python benchmarks/tenants.py [--seconds 60] [--minutes 3] [--runs 5] [--only weights,neighbour,gateways]
        [--out FILE]

The worker is fake: it takes a fixed time a token and generates nothing. `weights`: three tenants with weights 1 : 2 : 4
always have jobs waiting; tokens of each over the seconds, and of one that comes late. `neighbour`: the first token of a
tenant beside another that keeps to its limit, and beside one that offers ten times as much, in turns. `gateways`: eight
clients of one tenant send to four gateway processes and retry when they are told to: what was admitted beside limit and
capacity, how many retries were accepted or beaten by another client, and refusals while the bucket had room.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from octavo import AsyncClient, JobRequest, SamplingParams
from octavo.queue import wire
from octavo.queue.calls import run, run_many
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, Cell, Claim
from octavo.service.ports import free_port
from octavo.service.server import EmbeddedServer
from octavo.terms.errors import RateLimited
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.workers import ModelCard, WorkerInfo
from octavo_worker.bench.report import encode, percentile, report, write

MODEL, CELL, KEYS = "bench", Cell(), Keys()
STEP_S, STEP_TOKENS = 0.02, 2
PROMPT = tuple(range(200))
PROMPT_COST = len(PROMPT) + 16


@dataclass
class Worker:
    """A fake worker of so many rows, in this event loop. `tokens` counts by tenant."""

    url: str
    rows: int
    tokens: Counter[str] = field(default_factory=Counter)

    async def serve(self) -> None:
        async with connect(self.url) as connection:
            card = ModelCard(name=MODEL, max_model_len=4096, vocab_size=9, has_tokenizer=True, created_at=1.0)
            await run(connection, CELL.register_model(card))
            running: dict[str, tuple[Claim, int]] = {}
            beat_at = 0.0
            while True:
                began = time.monotonic()
                if began - beat_at > 1.0:
                    info = wire.encode_worker(
                        WorkerInfo(id="fake", model=MODEL, host="h", pid=os.getpid(), started_at=0.0)
                    )
                    owned = [(claim.job_id, claim.token) for claim, _ in running.values()]
                    await run(connection, CELL.heartbeat("fake", owned, lease_ms=10_000, info=info))
                    beat_at = began
                if len(running) < self.rows:
                    room = self.rows - len(running)
                    call = CELL.claim(
                        MODEL, "fake", max_jobs=room, max_tokens=1 << 30, lease_ms=10_000, idle=not running
                    )
                    running |= {claim.job_id: (claim, 0) for claim in (await run(connection, call)).jobs}
                await self._step(connection, running)
                await asyncio.sleep(max(0.0, STEP_S - (time.monotonic() - began)))

    async def _step(self, connection: Any, running: dict[str, tuple[Claim, int]]) -> None:
        items = []
        for claim, done in running.values():
            size = min(STEP_TOKENS, (claim.request.sampling.max_tokens or 0) - done)
            chunk = Chunk(token_ids=(7,) * size, texts=(" seven",) * size)
            items.append(Append(claim.job_id, claim.token, done, chunk))
            self.tokens[claim.tenant] += size
        for start in range(0, len(items), 64):
            await run(connection, CELL.append(items[start : start + 64]))
        ends = []
        for item in items:
            claim, done = running[item.job_id]
            done += len(item.chunk.token_ids)
            running[item.job_id] = (claim, done)
            if done >= (claim.request.sampling.max_tokens or 0):
                terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(PROMPT_COST, done))
                ends.append(CELL.finish(claim.job_id, claim.token, terminal, b""))
                del running[item.job_id]
        if ends:
            await run_many(connection, ends)


@asynccontextmanager
async def working(url: str, rows: int) -> AsyncIterator[Worker]:
    worker = Worker(url, rows)
    task = asyncio.create_task(worker.serve())
    try:
        async with connect(url) as connection:
            while not await connection.hexists(KEYS.models, MODEL):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield worker
    finally:
        task.cancel()
        await asyncio.wait([task])


def asked(tokens: int) -> JobRequest:
    return JobRequest(model=MODEL, prompt=PROMPT, sampling=SamplingParams(max_tokens=tokens))


async def always_waiting(client: AsyncClient, tenant: str) -> None:
    while True:
        waiting = int(await client._redis.hget(f"{KEYS.prefix}:q:{tenant}", "queued") or 0)
        if waiting < 20:
            await client.submit_many([asked(40)] * 20, tenant=tenant)
        await asyncio.sleep(0.05)


async def weights(url: str, seconds: float) -> list[dict[str, Any]]:
    shares = {"one": 1, "two": 2, "four": 4}
    async with AsyncClient(url) as client, working(url, 8) as worker:
        for tenant, weight in shares.items():
            await client.tenants.limit(tenant, {"weight": 1000 * weight})
        tasks = [asyncio.create_task(always_waiting(client, tenant)) for tenant in shares]
        await asyncio.sleep(2.0)
        before = worker.tokens.copy()
        await asyncio.sleep(seconds)
        done = {tenant: worker.tokens[tenant] - before[tenant] for tenant in shares}
        await client.tenants.limit("late", {"weight": 7000})
        tasks.append(asyncio.create_task(always_waiting(client, "late")))
        late = []
        for _ in range(4):
            before = worker.tokens.copy()
            await asyncio.sleep(2.0)
            spent = {tenant: worker.tokens[tenant] - before[tenant] for tenant in worker.tokens}
            late.append(round(spent["late"] / sum(spent.values()), 3))
        for task in tasks:
            task.cancel()
    total = sum(done.values())
    wrong = max(abs(done[tenant] / total / (weight / 7) - 1) for tenant, weight in shares.items())
    return [
        {"case": "weights 1:2:4", "seconds": seconds, "tokens": done, "furthest_from_its_share": round(wrong, 4)},
        {"case": "one with half of all weight comes late", "its_share_of_each_2_s": late},
    ]


async def first_tokens(client: AsyncClient, seconds: float) -> list[float]:
    """Seconds to the first token of a quiet tenant's jobs, five a second: less than its share."""
    times: list[float] = []

    async def one() -> None:
        began = time.monotonic()
        job = await client.submit(asked(8), tenant="quiet", follow=True)
        async for _ in job.events():
            times.append(time.monotonic() - began)
            break

    async with asyncio.TaskGroup() as group:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            group.create_task(one())
            await asyncio.sleep(0.2)
    return times


async def offer(url: str, a_second: float) -> None:
    """The noisy tenant, in a process of its own."""
    async with AsyncClient(url) as client:
        while True:
            with suppress(RateLimited):
                await client.submit(asked(20), tenant="noisy")
            await asyncio.sleep(1 / a_second)


@contextmanager
def offering(url: str, a_second: float) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, __file__, "--offer", url, "--rate", str(a_second)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def neighbour(url: str, seconds: float, runs: int) -> list[dict[str, Any]]:
    limited = 8.0  # jobs a second
    found: dict[str, list[float]] = {"keeps to its limit": [], "offers ten times its limit": []}
    async with AsyncClient(url) as client, working(url, 16):
        cost = round(60 * limited * (PROMPT_COST + 20))
        await client.tenants.limit("noisy", {"tokens_per_minute": cost, "tokens_per_minute_capacity": cost // 60})
        for number in range(2 * runs + 2):
            case = list(found)[number % 2]
            with offering(url, limited * (0.95 if number % 2 == 0 else 10)):
                await asyncio.sleep(2.0)
                times = await first_tokens(client, seconds)
            if number >= 2:  # the first of each is a warm-up
                found[case].append(percentile(times, 0.99))
            await asyncio.sleep(2.0)
    middle = {case: statistics.median(values) for case, values in found.items()}
    base, loud = middle.values()
    return [
        {"case": f"neighbour {case}", "runs": runs, "first_token_p99_ms": round(1000 * value, 1)}
        for case, value in middle.items()
    ] + [{"case": "neighbour: worse by", "share": round(loud / base - 1, 3)}]


@dataclass
class Sent:
    """Answers that eight clients got."""

    accepted_at: list[float] = field(default_factory=list)
    retries: int = 0
    in_time: int = 0
    beaten: int = 0
    refused_with_room: int = 0


async def insist(http: httpx.AsyncClient, url: str, sent: Sent, until: float) -> None:
    """One client: the next request once the last was accepted, a retry when it is told to."""
    body = {"model": MODEL, "prompt": list(PROMPT), "sampling": {"max_tokens": 84}}
    refused_at = 0.0
    while time.monotonic() < until:
        reply = await http.post(f"{url}/v1/jobs", json=body, headers={"Authorization": "Bearer k"})
        now = time.monotonic()
        sent.retries += refused_at > 0
        if reply.status_code == 202:
            sent.accepted_at.append(now)
            sent.in_time += refused_at > 0
            refused_at = 0.0
            continue
        assert reply.status_code == 429, reply.text
        sent.beaten += 0 < refused_at < (sent.accepted_at[-1] if sent.accepted_at else 0.0)
        has_room = int(reply.headers["x-ratelimit-remaining-tokens"]) >= PROMPT_COST + 84
        sent.refused_with_room += has_room and int(reply.headers["x-ratelimit-remaining-requests"]) > 0
        refused_at = now
        await asyncio.sleep(int(reply.headers["retry-after-ms"]) / 1000)


@contextmanager
def four_gateways(url: str) -> Iterator[list[int]]:
    """Their ports."""
    ports = [free_port() for _ in range(4)]
    flags = ["--redis-url", url, "--api-keys", "acme:k", "--log-level", "error"]
    words = [[sys.executable, "-m", "octavo_gateway", "--port", str(port), *flags] for port in ports]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in words]
    try:
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def gateways(url: str, minutes: float) -> list[dict[str, Any]]:
    limits = {"tokens_per_minute": 60_000, "requests_per_minute": 600}
    rows = []
    with four_gateways(url) as ports:
        async with AsyncClient(url) as client, working(url, 64), httpx.AsyncClient(timeout=30.0) as http:
            for port in ports:
                while True:
                    with suppress(httpx.TransportError):
                        if (await http.get(f"http://127.0.0.1:{port}/livez")).is_success:
                            break
                    await asyncio.sleep(0.1)
            for clients, lasts in ((8, minutes), (1, minutes / 3)):
                await client.tenants.limit("acme", dict.fromkeys(limits))
                await client.tenants.limit("acme", limits)
                sent, began = Sent(), time.monotonic()
                until = began + 60 * lasts
                urls = [f"http://127.0.0.1:{ports[number % 4]}" for number in range(clients)]
                await asyncio.gather(*(insist(http, one, sent, until) for one in urls))
                tokens = len(sent.accepted_at) * (PROMPT_COST + 84)
                allowed = 60_000 * (1 + (sent.accepted_at[-1] - began) / 60)
                rows.append({
                    "case": f"one tenant, {clients} clients, four gateways", "minutes": lasts, "tokens": tokens,
                    "of_limit_and_capacity": round(tokens / allowed, 4), "retries": sent.retries,
                    "retries_accepted": sent.in_time, "retries_beaten_by_another_client": sent.beaten,
                    "refusals_while_there_was_room": sent.refused_with_room,
                })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="weights,neighbour,gateways")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--offer", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=1.0, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.offer:
        asyncio.run(offer(chosen.offer, chosen.rate))
        return
    cases = {
        "weights": lambda url: weights(url, chosen.seconds),
        "neighbour": lambda url: neighbour(url, chosen.seconds / 6, chosen.runs),
        "gateways": lambda url: gateways(url, chosen.minutes),
    }
    rows: list[dict[str, Any]] = []
    for name in chosen.only.split(","):
        with tempfile.TemporaryDirectory() as folder, EmbeddedServer(data_dir=Path(folder)) as server:
            rows += asyncio.run(cases[name](server.url))
            print(encode({"rows": rows}), flush=True)
    document = report("tenants", rows)
    print(encode(document))
    if chosen.out is not None:
        write(document, chosen.out)


if __name__ == "__main__":
    main()
