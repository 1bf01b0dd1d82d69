"""Costs of guests that mean harm: CPU time for which a body keeps others waiting, memory that stays behind them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
from largest_bodies import MODEL, LargestBody

from octavo import AsyncClient
from octavo.queue.calls import run
from octavo.queue.connection import connect
from octavo.queue.protocol import Append, Cell
from octavo.terms.messages import Chunk, FinishReason, JobStatus, Terminal, Usage
from octavo.terms.workers import ModelCard

GUESTS = 100
MOST_HELD_S = 0.050
MOST_KEPT_BYTES = 60 << 20
LONG_TEXT = "a" * 1024
LONG_TOKENS = 4096
PIPELINED = 8000
LEFT_ALONE_S = 5.0
MOST_IDLE_S = 0.05  # of CPU in a second: its chores


@dataclass(frozen=True)
class Target:
    """A gateway process, the server behind it, and a key of it."""

    port: int
    pid: int
    redis_url: str
    key: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def cpu_s(self) -> float:
        """CPU time of all its threads so far: Linux has a clock for every process."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def memory(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)


class Life:
    """`/livez` on a connection of its own, over and over: for how much CPU time of the process it has to wait."""

    def __init__(self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._target, self._reader, self._writer = target, reader, writer

    @classmethod
    @asynccontextmanager
    async def of(cls, target: Target) -> AsyncIterator[Life]:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        yield cls(target, reader, writer)
        writer.close()

    async def longest_wait(self, work: Awaitable[Any]) -> float:
        """The longest wait while `work` is under way, seconds of CPU time."""
        task, longest = asyncio.ensure_future(work), 0.0
        while not task.done():
            before = self._target.cpu_s()
            await self._ask()
            longest = max(longest, self._target.cpu_s() - before)
        await task
        return longest

    async def _ask(self) -> None:
        self._writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self._reader.readexactly(int(length.partition(b":")[2]))


@dataclass(frozen=True)
class Held:
    body: LargestBody
    status: int
    seconds: float


async def bodies_hold(target: Target, bodies: list[LargestBody]) -> list[Held]:
    """For how long each of these bodies keeps `/livez` waiting, the longest first."""
    found = []
    async with Life.of(target) as life, httpx.AsyncClient(base_url=target.url, timeout=60) as http:
        for body in bodies:
            statuses: list[int] = []
            found.append(Held(body, 0, await life.longest_wait(_post(http, target, body, statuses))))
            found[-1] = Held(body, statuses[0], found[-1].seconds)
    return sorted(found, key=lambda held: -held.seconds)


async def _post(http: httpx.AsyncClient, target: Target, body: LargestBody, statuses: list[int]) -> None:
    headers = {**target.headers, "Content-Type": body.media_type}
    statuses.append((await http.post(body.path, content=body.data, headers=headers)).status_code)


@asynccontextmanager
async def long_job(target: Target) -> AsyncIterator[str]:
    """A job with megabytes of text, complete; its id."""
    cell = Cell()
    async with connect(target.redis_url) as connection, AsyncClient(target.redis_url) as client:
        card = ModelCard(name="long", max_model_len=1 << 20, vocab_size=256, has_tokenizer=True, created_at=1.0)
        await run(connection, cell.register_model(card))
        job = await client.submit("x", model="long", max_tokens=LONG_TOKENS, tenant="fuzz")
        asked = {"max_jobs": 1, "max_tokens": 1 << 30, "lease_ms": 60_000, "idle": True}
        claims = await run(connection, cell.claim("long", "w", **asked))
        token = claims.jobs[0].token
        for offset in range(0, LONG_TOKENS, 64):
            chunks = [Chunk(0, (1,), (LONG_TEXT,), finish_reason=_reason(offset + i)) for i in range(64)]
            await run(connection, cell.append([Append(job.id, token, offset + i, c) for i, c in enumerate(chunks)]))
        terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(1, LONG_TOKENS))
        await run(connection, cell.finish(job.id, token, terminal, b""))
        yield job.id


def _reason(offset: int) -> FinishReason | None:
    return "length" if offset == LONG_TOKENS - 1 else None


Guest = Callable[[Target, str], Awaitable[None]]


async def _send(target: Target, data: bytes) -> None:
    """Send, and look at nothing that comes, until the server hangs up or patience ends."""
    _, writer = await asyncio.open_connection("127.0.0.1", target.port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # of TCP's transports
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(LEFT_ALONE_S):
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(LEFT_ALONE_S)
    writer.transport.abort()


def _head(target: Target, method: str, path: str, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {target.key}", *more, "", ""]
    return "\r\n".join(lines).encode()


async def pipelines_without_a_key(target: Target, _: str) -> None:
    await _send(target, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * PIPELINED)


async def pipelines_with_a_key(target: Target, _: str) -> None:
    await _send(target, _head(target, "GET", "/v1/models") * PIPELINED)


async def never_reads_a_stream(target: Target, job_id: str) -> None:
    await _send(target, _head(target, "GET", f"/v1/jobs/{job_id}/stream"))


async def never_reads_a_log(target: Target, job_id: str) -> None:
    await _send(target, _head(target, "GET", f"/v1/jobs/{job_id}/log"))


async def never_reads_a_live_log(target: Target, job_id: str) -> None:
    await _send(target, _head(target, "GET", f"/v1/jobs/{job_id}/log?offset=-1&live=sse"))


async def never_reads_a_result(target: Target, job_id: str) -> None:
    await _send(target, _head(target, "GET", f"/v1/jobs/{job_id}/result"))


async def never_ends_a_head(target: Target, _: str) -> None:
    await _send(target, b"GET / HTTP/1.1\r\nX: " + b"a" * 60_000)


async def never_ends_a_body(target: Target, _: str) -> None:
    length = "Content-Length: 1000000"
    await _send(target, _head(target, "POST", "/v1/jobs", "Content-Type: application/json", length) + b" " * 999_999)


async def sends_errors(target: Target, _: str) -> None:
    names = b",".join(b'"a%d":0' % number for number in range(60_000))
    body = b'{"model": "%s", "prompt": "x", "sampling": {%s}}' % (MODEL.encode(), names)
    length = f"Content-Length: {len(body)}"
    await _send(target, _head(target, "POST", "/v1/jobs", "Content-Type: application/json", length) + body)


async def sends_messages(target: Target, _: str) -> None:
    turns = b",".join([b'{"role":"user","content":""}'] * 30_000)
    body = b'{"model": "absent", "messages": [' + turns + b"]}"
    length = f"Content-Length: {len(body)}"
    await _send(target, _head(target, "POST", "/v1/jobs", "Content-Type: application/json", length) + body)


KINDS: list[Guest] = [
    pipelines_without_a_key,
    pipelines_with_a_key,
    never_reads_a_stream,
    never_reads_a_log,
    never_reads_a_live_log,
    never_reads_a_result,
    never_ends_a_head,
    never_ends_a_body,
    sends_errors,
    sends_messages,
]


@dataclass(frozen=True)
class Kept:
    """The cost of guests of a kind: bytes at the most, bytes that stayed, and the longest wait of `/livez`."""

    name: str
    most: int
    stayed: int
    held_s: float


async def guests_cost(target: Target) -> list[Kept]:
    """A hundred guests of each kind at once, one kind after the other."""
    found = []
    async with long_job(target) as job_id:
        for kind in KINDS:
            before, peak = target.memory(), _Peak(target)
            watching = asyncio.create_task(peak.watch())
            async with Life.of(target) as life:
                held_s = await life.longest_wait(asyncio.gather(*(kind(target, job_id) for _ in range(GUESTS))))
            await _idle(target)
            watching.cancel()
            found.append(Kept(kind.__name__, peak.most - before, target.memory() - before, held_s))
    return found


async def _idle(target: Target) -> None:
    """Until the gateway has done with them."""
    spent = -1.0
    while target.cpu_s() - spent > MOST_IDLE_S:
        spent = target.cpu_s()
        await asyncio.sleep(1.0)


class _Peak:
    def __init__(self, target: Target) -> None:
        self._target = target
        self.most = target.memory()

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, self._target.memory())
            await asyncio.sleep(0.05)
