"""Batches on fake workers that generate nothing: `measure`, and as a program one fake worker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from octavo.client.batches import BatchClient
from octavo.queue import wire
from octavo.queue.batches.calls import NewBatch, NewFile
from octavo.queue.batches.keys import BATCH, FILE, new_id
from octavo.queue.calls import run, run_many
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, Cell, Claim
from octavo.service.storage import open_storage
from octavo.service.storage.interface import in_pieces
from octavo.service.storage.places import file_name
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.workers import ModelCard, WorkerInfo

MODEL, TOKENS, AT_ONCE = "bench", 32, 64
CELL, KEYS = Cell(), Keys()
URL = "/v1/chat/completions"


def lines(count: int) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "x" * 560}, {"role": "user", "content": "hello " * 20}],
        "max_tokens": TOKENS,
    }
    each = ({"custom_id": f"request-{i}", "method": "POST", "url": URL, "body": body} for i in range(count))
    return b"".join(json.dumps(line).encode() + b"\n" for line in each)


async def serve(url: str, number: int, rate: float) -> None:
    """One fake worker: claims, appends all tokens in one piece, finishes; `rate` jobs a second, 0 for as many as it
    can."""
    name, free_at = f"fake{number}", 0.0
    async with connect(url) as connection:
        beat_at = 0.0
        while True:
            if time.monotonic() - beat_at > 2.0:
                stats: dict[str, Any] = {"max_running": 256}
                info = WorkerInfo(id=name, model=MODEL, host="h", pid=os.getpid(), started_at=0.0, stats=stats)
                await run(connection, CELL.heartbeat(name, [], lease_ms=60_000, info=wire.encode_worker(info)))
                await run(connection, CELL.reap())
                beat_at = time.monotonic()
            call = CELL.claim(MODEL, name, max_jobs=AT_ONCE, max_tokens=1 << 20, lease_ms=60_000, idle=True)
            jobs = (await run(connection, call)).jobs
            if jobs:
                if rate:
                    free_at += len(jobs) / rate
                    await asyncio.sleep(max(0.0, free_at - time.monotonic()))
                await _generate(connection, jobs)
            else:
                await connection.blpop([KEYS.bell(MODEL)], timeout=1)
                free_at = time.monotonic()


async def _generate(connection: Any, jobs: tuple[Claim, ...]) -> None:
    chunk = Chunk(token_ids=(7,) * TOKENS, texts=(" seven",) * TOKENS, finish_reason="length")
    terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(100, TOKENS))
    result = wire.encode_result(terminal, [chunk])
    await run(connection, CELL.append([Append(job.job_id, job.token, 0, chunk) for job in jobs]))
    await run_many(connection, [CELL.finish(job.job_id, job.token, terminal, result) for job in jobs])


async def measure(folder: Path, url: str, count: int, workers: int, rate: float = 0.0) -> dict[str, Any]:
    async with BatchClient(url) as client:
        card = ModelCard(name=MODEL, max_model_len=4096, vocab_size=9, has_tokenizer=True, created_at=1.0)
        await run(client.redis, CELL.register_model(card))
        data, file_id = lines(count), new_id(FILE)
        await open_storage(str(folder)).put(file_name(file_id), in_pieces(data))
        await client.note_file(NewFile(file_id, "acme", "in", "batch", len(data), "00"), cap=1 << 40)
        with ExitStack() as stack:

            def start(*words: str) -> psutil.Process:
                environment = os.environ | {"OCTAVO_FILES": str(folder), "OCTAVO_REDIS_URL": url}
                process = subprocess.Popen([sys.executable, *words], env=environment, stderr=subprocess.DEVNULL)
                stack.callback(process.wait)
                stack.callback(process.kill)
                return psutil.Process(process.pid)

            clerk = start("-m", "octavo.service.clerk")
            for number in range(workers):
                start(__file__, url, str(number), str(rate))
            await asyncio.sleep(3.0)
            idle = int((await client.redis.info("memory"))["used_memory"])
            return await _watched(client, clerk, file_id, idle)


async def _watched(client: BatchClient, clerk: psutil.Process, file_id: str, idle: int) -> dict[str, Any]:
    began, begun, executed = time.monotonic(), 0.0, 0.0
    batch = await client.create(NewBatch(new_id(BATCH), "acme", URL, file_id, "24h", 86_400))
    most_server = most_clerk = 0
    assert batch is not None
    cpu = sum(clerk.cpu_times()[:2])
    while not batch.status.is_terminal:
        if not begun and batch.total:
            begun = time.monotonic()
        most_server = max(most_server, int((await client.redis.info("memory"))["used_memory"]) - idle)
        if not executed and begun and batch.cursor == batch.total:
            is_open = await client.redis.zcard(client.keys.open_jobs(batch.id))
            executed = 0.0 if is_open else time.monotonic()
        most_clerk = max(most_clerk, clerk.memory_info().rss)
        await asyncio.sleep(0.05)
        batch = await client.batch(batch.id)
        assert batch is not None
    ended = time.monotonic()
    assert batch.completed == batch.total, batch
    return {
        "lines": batch.total,
        "seconds_until_in_progress": round(begun - began, 2),
        "seconds": round(ended - began, 1),
        "lines_per_second": round(batch.total / (ended - begun)),
        "executed_per_second": round(batch.total / ((executed or ended) - begun), 1),
        "clerk_cpu_us_a_line": round(1e6 * (sum(clerk.cpu_times()[:2]) - cpu) / batch.total),
        "most_clerk_mb": round(most_clerk / 1e6),
        "most_server_mb_above_idle": round(most_server / 1e6),
    }


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
