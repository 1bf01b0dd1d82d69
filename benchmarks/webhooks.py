"""Webhooks to fifty endpoints of which ten hang: how long an event takes to those that work.

    python benchmarks/webhooks.py [--seconds 60] [--rate 20] [--out FILE]

Jobs end at a fixed rate; each is an event for every endpoint of its tenant. Ten tenants have five endpoints each, one
of which hangs in the second row. Tells the time from the call that ends a job to the arrival of its event at a receiver
that works. One courier, in a process of its own, beside server and receivers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from octavo.client.webhooks import WebhookClient
from octavo.queue import wire
from octavo.queue.calls import run
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell
from octavo.service.server import EmbeddedServer
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import JobStatus, Terminal, Usage
from octavo.terms.models import JobRequest
from octavo.terms.workers import ModelCard
from octavo_worker.bench.report import encode, report, write

TENANTS, ENDPOINTS = 10, 5
CELL, KEYS = Cell(), Keys()


@dataclass
class Receivers:
    """One server for all endpoints. `/hang` never answers."""

    ended_at: dict[str, float] = field(default_factory=dict)  # by event
    seconds: list[float] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            if head.startswith("POST /hang"):
                await reader.read()
                return
            event = next(line[12:] for line in head.split("\r\n") if line.lower().startswith("webhook-id: "))
            self.seconds.append(time.time() - self.ended_at[event])
            writer.write(b"HTTP/1.1 204 X\r\n\r\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def measure(url: str, seconds: float, rate: float, *, hanging: int) -> dict[str, Any]:
    """One row: `hanging` of each tenant's endpoints hang."""
    receivers = Receivers()
    server = await asyncio.start_server(receivers.serve, "127.0.0.1", 0)
    receivers.port = server.sockets[0].getsockname()[1]
    async with WebhookClient(url) as client, connect(url) as connection:
        await connection.flushall()
        card = ModelCard(name="m", max_model_len=64, vocab_size=256, has_tokenizer=True, created_at=1.0)
        await run(connection, CELL.register_model(card))
        for tenant in range(TENANTS):
            for number in range(ENDPOINTS):
                path = f"/hang/{number}" if number < hanging else f"/ok/{number}"
                await client.create(f"t{tenant}", path, f"http://127.0.0.1:{receivers.port}{path}", ["job.completed"])
        began, sent = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            await asyncio.sleep(max(0.0, began + sent / rate - time.monotonic()))
            await end_a_job(connection, receivers, f"t{sent % TENANTS}")
            sent += 1
        wanted = sent * (ENDPOINTS - hanging)
        for _ in range(600):
            if len(receivers.seconds) < wanted:
                await asyncio.sleep(0.1)
    server.close()
    cuts = quantiles(receivers.seconds, n=100)
    return {
        "endpoints": TENANTS * ENDPOINTS, "hanging": TENANTS * hanging, "events": sent, "deliveries_wanted": wanted,
        "deliveries": len(receivers.seconds), "p50_s": round(median(receivers.seconds), 4),
        "p99_s": round(cuts[98], 4), "most_s": round(max(receivers.seconds), 4),
    }  # fmt: skip


async def end_a_job(connection: Any, receivers: Receivers, tenant: str) -> None:
    job_id, limits = KEYS.new_job_id(), Limits()
    request = JobRequest(model="m", prompt="p", notify=True)
    named: dict[str, Any] = {"seed": 1, "tenant": tenant, "idempotency_key": None, "limits": limits}
    await run(connection, CELL.enqueue(job_id, request, retention=Retention(), **named))
    claim = CELL.claim("m", "w", max_jobs=1, max_tokens=1 << 20, lease_ms=60_000, idle=True)
    (job,) = (await run(connection, claim)).jobs
    terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage())
    receivers.ended_at[f"evt_{job_id}"] = time.time()
    await run(connection, CELL.finish(job.job_id, job.token, terminal, wire.encode_result(terminal, [])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each row")
    parser.add_argument("--rate", type=float, default=20.0, help="jobs that end in a second")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with EmbeddedServer() as server:
        environment = {
            "OCTAVO_REDIS_URL": server.url,
            "OCTAVO_SECRET": "s" * 40,
            "OCTAVO_WEBHOOK_HTTP": "1",
            "OCTAVO_WEBHOOK_NETWORKS": "127.0.0.0/8",
        }
        clerk = subprocess.Popen([sys.executable, "-m", "octavo.service.clerk"], env=os.environ | environment)
        try:
            asyncio.run(measure(server.url, 1.0, 5.0, hanging=0))  # until the clerk has started
            rows = [asyncio.run(measure(server.url, asked.seconds, asked.rate, hanging=hanging)) for hanging in (0, 1)]
        finally:
            clerk.kill()
    document = report("webhooks", rows, jobs_per_second=asked.rate)
    print(encode(document))
    if asked.out is not None:
        write(document, asked.out)


if __name__ == "__main__":
    main()
