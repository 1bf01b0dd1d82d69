"""Cost of the live page: a gateway's CPU and bytes with viewers, an engine's time for a map of its blocks.

    python benchmarks/live_page.py [--seconds 15] [--viewers 20]

Workers are played: their blocks change as those of 256 sequences do that make 30 tokens a second each, in blocks that
lie next to each other or, `scattered`, nowhere near.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil

from octavo.queue import wire
from octavo.queue.calls import run
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell
from octavo.service.ports import free_port
from octavo.service.server import EmbeddedServer
from octavo.terms.messages import WorkerMap
from octavo.terms.workers import ModelCard, WorkerInfo
from octavo_worker.bench.report import median, report, write
from octavo_worker.engine.kv.block_report import block_report
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.memory.block_pool import BlockPool

RESULT = Path(__file__).parent / "results" / "page.json"
SEQUENCES, TOKENS_PER_S, BLOCK = 256, 30, 16


class PlayedWorker:
    """A worker with full memory that says what it has, and whose blocks change."""

    def __init__(self, url: str, name: str, blocks: int, scattered: bool) -> None:
        self._redis, self._cell, self._keys = connect(url), Cell(), Keys()
        self._name, self._blocks = name, blocks
        jobs = min(SEQUENCES, blocks // 16)
        self._owners = tuple(self._keys.new_job_id() for _ in range(jobs))
        each = blocks // jobs
        self._cells = array("H", (16 + min(jobs - 1, block // each) for block in range(blocks)))
        if scattered:
            random.shuffle(self._cells)
        self._at = time.monotonic()

    async def run(self) -> None:
        card = ModelCard(name="played", max_model_len=4096, vocab_size=9, has_tokenizer=False, created_at=0)
        await run(self._redis, self._cell.register_model(card))
        await asyncio.gather(self._beat(), self._answer())

    async def _beat(self) -> None:
        made = 0
        while True:
            made += SEQUENCES * TOKENS_PER_S
            stats: Any = {"generated_tokens": made, "running": len(self._owners), "used_blocks": self._blocks}
            info = WorkerInfo(id=self._name, model="played", host="here", pid=1, started_at=1.0, stats=stats)
            call = self._cell.heartbeat(self._name, [], lease_ms=9000, info=wire.encode_worker(info))
            await run(self._redis, call)
            await asyncio.sleep(1.0)

    async def _answer(self) -> None:
        while True:
            asked: Any = await self._redis.blpop([self._keys.inbox(self._name)], timeout=5)
            if asked is None:
                continue
            now = time.monotonic()
            for _ in range(int(len(self._owners) * TOKENS_PER_S / BLOCK * min(1.0, now - self._at))):
                self._cells[random.randrange(self._blocks)] = 16 + random.randrange(len(self._owners))
            self._at = now
            await self._redis.rpush(self._keys.answer(asked[1].decode()), wire.encode_map(self._map()))
            await asyncio.sleep(0.2)

    def _map(self) -> WorkerMap:
        codes, lengths = array("H"), array("I")
        for code in self._cells:
            if codes and codes[-1] == code:
                lengths[-1] += 1
            else:
                codes.append(code)
                lengths.append(1)
        data = (self._owners, codes.tobytes(), lengths.tobytes())
        return WorkerMap(self._name, time.time(), BLOCK, self._blocks, 0, *data)


async def view(port: int, counts: list[int], place: int) -> None:
    """Read the events and count their bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/fleet/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    while data := await reader.read(1 << 20):
        counts[place] += len(data)


async def measure(
    url: str, *, workers: int, blocks: int, viewers: int, seconds: float, scattered: bool
) -> dict[str, Any]:
    """A row: the gateway's share of a core, and what a viewer gets."""
    port = free_port()
    environment = os.environ | {"REDIS_URL": url, "OCTAVO_PORT": str(port), "OCTAVO_LOG_LEVEL": "error"}
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "octavo_gateway", env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    played = [PlayedWorker(url, f"w{number}", blocks, scattered) for number in range(workers)]
    tasks = [asyncio.create_task(worker.run()) for worker in played]
    try:
        process = psutil.Process(gateway.pid)
        await _listening(process, port)
        shares, counts = [], [0] * viewers
        for looking in (False, True):
            if looking:
                tasks += [asyncio.create_task(view(port, counts, place)) for place in range(viewers)]
                await asyncio.sleep(4.0)
            before, began, at = list(counts), time.monotonic(), process.cpu_times()
            await asyncio.sleep(seconds)
            used, took = process.cpu_times(), time.monotonic() - began
            shares.append((used.user + used.system - at.user - at.system) / took)
        sent = sum(counts) - sum(before)
        return {
            "workers": workers, "blocks": blocks, "scattered": scattered, "viewers": viewers,
            "gateway_core_idle": round(shares[0], 4), "gateway_core": round(shares[1], 4),
            "kilobytes_per_s_a_viewer": round(sent / viewers / took / 1000, 1),
        }  # fmt: skip
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gateway.terminate()
        await gateway.wait()


async def _listening(process: psutil.Process, port: int) -> None:
    for _ in range(300):
        if any(line.laddr.port == port for line in process.net_connections()):
            return
        await asyncio.sleep(0.2)
    raise TimeoutError("the gateway does not listen")


def engine_row(blocks: int, scattered: bool) -> dict[str, Any]:
    """Milliseconds of an engine's thread for one map, with all blocks in use."""
    pool = BlockPool(blocks + 1)
    taken = pool.allocate(blocks)
    if scattered:
        random.shuffle(taken)
    each = blocks // SEQUENCES
    tables = [array("i", taken[place * each : (place + 1) * each]) for place in range(SEQUENCES)]
    pool.acquire(tables[0][:1])
    holders = [
        SimpleNamespace(request=SimpleNamespace(id=f"{place:032d}"), table=SimpleNamespace(blocks=table))
        for place, table in enumerate(tables)
    ]
    memory = SimpleNamespace(pool=pool, host=None, pins=SimpleNamespace(blocks=[]))
    scheduler = cast(Scheduler, SimpleNamespace(kv=memory, holders=lambda: holders))
    spent = []
    for _ in range(60):
        began = time.thread_time()
        block_report(scheduler)
        spent.append((time.thread_time() - began) * 1e3)
    return {"engine_blocks": blocks, "scattered": scattered, "ms_a_map": round(median(spent), 3)}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--viewers", type=int, default=20)
    asked = parser.parse_args()
    rows = [engine_row(blocks, scattered) for blocks in (4096, 80_000) for scattered in (False, True)]
    for workers, blocks, scattered in ((4, 4096, False), (4, 4096, True), (1, 80_000, False)):
        with EmbeddedServer() as server:
            sizes: dict[str, Any] = {"workers": workers, "blocks": blocks, "scattered": scattered}
            rows.append(await measure(server.url, **sizes, viewers=asked.viewers, seconds=asked.seconds))
        print(rows[-1])
    write(report("page", rows), RESULT)


if __name__ == "__main__":
    asyncio.run(main())
