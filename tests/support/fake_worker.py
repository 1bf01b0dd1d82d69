"""A worker without a model: token i of a job is a hash of the job's prompt, its seed and i."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import redis.asyncio

from octavo.queue import wire
from octavo.queue.calls import run
from octavo.queue.protocol import Append, Cell, Claim
from octavo.queue.streams import read_stream
from octavo.terms.messages import Chunk, JobError, JobStatus, Terminal, Usage
from octavo.terms.models import JobRequest
from octavo.terms.workers import ModelCard, WorkerInfo

MODEL = "toy"
CELL = Cell()


def token_of(request: JobRequest, seed: int, position: int) -> int:
    digest = hashlib.blake2b(f"{request.prompt} {seed} {position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


def expected(prompt: str, seed: int, count: int) -> list[int]:
    """The tokens of a job."""
    request = JobRequest(model=MODEL, prompt=prompt)
    return [token_of(request, seed, i) for i in range(count)]


def text_of(token: int) -> str:
    return f"{token:x} "


def chunk_of(tokens: list[int], *, last: bool) -> Chunk:
    return Chunk(
        token_ids=tuple(tokens), texts=tuple(text_of(t) for t in tokens), finish_reason="length" if last else None
    )


async def register(connection: redis.asyncio.Redis, model: str = MODEL, aliases: tuple[str, ...] = ()) -> None:
    """A model, by a worker `<model>-w` with a first heartbeat where it announces `aliases`."""
    card = ModelCard(
        name=model, max_model_len=512, vocab_size=256, has_tokenizer=False, created_at=1.0, aliases=aliases
    )
    info = wire.encode_worker(WorkerInfo(id=f"{model}-w", model=model, host="here", pid=1, started_at=1.0))
    told = {"worker_id": f"{model}-w", "lease_ms": 60_000, "info": info} if aliases else {}
    await run(connection, CELL.register_model(card, **told))


async def beat(connection: redis.asyncio.Redis, worker_id: str = "w", model: str = MODEL) -> None:
    """One heartbeat of a worker that does nothing else: it is alive for some seconds."""
    info = WorkerInfo(id=worker_id, model=model, host="here", pid=1, started_at=1.0)
    await run(connection, CELL.heartbeat(worker_id, [], lease_ms=60_000, info=wire.encode_worker(info)))


async def claimed(connection: redis.asyncio.Redis) -> Claim:
    """The one job that waits."""
    call = CELL.claim(MODEL, "w", max_jobs=1, max_tokens=99, lease_ms=60_000, idle=True)
    (claim,) = (await run(connection, call)).jobs
    return claim


async def generate(connection: redis.asyncio.Redis, claim: Claim, *, delay: float, step: int) -> None:
    """Run one job to its end; a prompt "fail N" fails after N tokens."""
    request = claim.request
    total = request.sampling.max_tokens or 0
    chunks = [event.chunk for event in await read_stream(connection, claim.job_id) if event.chunk]
    offset = claim.offset
    status, error = JobStatus.COMPLETED, None
    while offset < total:
        if str(request.prompt) == f"fail {offset}":
            status, error = JobStatus.FAILED, JobError(code="engine_error", message="it broke")
            break
        await asyncio.sleep(delay)
        size = min(step, total - offset)
        tokens = [token_of(request, claim.seed, offset + i) for i in range(size)]
        chunk = chunk_of(tokens, last=offset + size == total)
        (reply,) = await run(connection, CELL.append([Append(claim.job_id, claim.token, offset, chunk)]))
        if reply.state == "fenced":
            return
        chunks.append(chunk)
        offset = reply.offset
        if reply.state == "cancel":
            status = JobStatus(reply.reason or "cancelled")
            break
    terminal = Terminal(status=status, usage=Usage(prompt_tokens=1, completion_tokens=offset), error=error)
    assert await run(connection, CELL.finish(claim.job_id, claim.token, terminal, wire.encode_result(terminal, chunks)))


@asynccontextmanager
async def fake_worker(
    connection: redis.asyncio.Redis, *, delay: float = 0.001, step: int = 1, capacity: int = 64, model: str = MODEL
) -> AsyncIterator[None]:
    """Serves `model` from inside this event loop until the context ends."""
    await register(connection, model)
    serving = asyncio.create_task(_serve(connection, delay, step, capacity, model))
    try:
        yield
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


async def _serve(connection: redis.asyncio.Redis, delay: float, step: int, capacity: int, model: str) -> None:
    info = WorkerInfo(id="fake", model=model, host="here", pid=1, started_at=1.0)
    async with asyncio.TaskGroup() as running:
        count = 0

        def done(task: asyncio.Task[None]) -> None:
            nonlocal count
            count -= 1

        while True:
            await run(connection, CELL.heartbeat("fake", [], lease_ms=5000, info=wire.encode_worker(info)))
            claims = await run(
                connection,
                CELL.claim(
                    model, "fake", max_jobs=capacity - count, max_tokens=1 << 30, lease_ms=60_000, idle=not count
                ),
            )
            for claim in claims.jobs:
                count += 1
                running.create_task(generate(connection, claim, delay=delay, step=step)).add_done_callback(done)
            if not claims.jobs:
                await asyncio.sleep(0.01)
