"""A cell to play with: every script one short call away, on the real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import fake_worker as fake
import pytest
import redis
import redis.asyncio
from buckets import level_in
from sync_streams import read_stream_sync

from octavo import AsyncClient
from octavo.queue import wire
from octavo.queue.calls import Call, run_sync
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, AppendReply, Cell, Claim, Claims, FinishReply, LineOfBatch
from octavo.queue.tenants.limits import Scope, TenantCell
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.models import Event, JobRequest
from octavo.terms.sampling import SamplingParams
from octavo.terms.workers import ModelCard

T = TypeVar("T")
MODEL = "toy"


def make_request(
    prompt: str | tuple[int, ...] = "hello", *, model: str = MODEL, max_tokens: int = 8, **fields: Any
) -> JobRequest:
    return JobRequest(model=model, prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens), **fields)


class World:
    """A cell with one known model, driven synchronously."""

    def __init__(self, connection: redis.Redis) -> None:
        self.redis = connection
        self.cell = Cell()
        self.keys = Keys()
        self.know(MODEL)

    def run(self, call: Call[T]) -> T:
        return run_sync(self.redis, call)

    def know(self, model: str) -> None:
        card = ModelCard(name=model, max_model_len=512, vocab_size=256, has_tokenizer=True, created_at=1.0)
        self.run(self.cell.register_model(card))

    def enqueue_call(
        self,
        request: JobRequest | None = None,
        *,
        job_id: str | None = None,
        tenant: str = "acme",
        key: str | None = None,
        limits: Limits | None = None,
        retention: Retention | None = None,
        subscriber: str = "",
        attachment: bytes = b"",
        key_id: str = "",
        line: LineOfBatch | None = None,
    ) -> Call[Any]:
        return self.cell.enqueue(
            job_id or self.keys.new_job_id(),
            request or make_request(),
            seed=(1 << 63) - 1,
            tenant=tenant,
            idempotency_key=key,
            limits=limits or Limits(),
            retention=retention or Retention(),
            subscriber_id=subscriber,
            attachment=attachment,
            key_id=key_id,
            line=line,
        )

    def enqueue(self, request: JobRequest | None = None, **options: Any) -> str:
        return str(self.run(self.enqueue_call(request, **options)).job_id)

    def limit(self, *, tenant: str = "acme", scope: Scope | None = None, **values: int | None) -> dict[str, int]:
        return self.run(TenantCell().change(tenant, values, scope))

    def level(self, field: str, tenant: str = "acme") -> float:
        """Level of a bucket when it was touched last."""
        return level_in(self.redis.hget(self.keys.buckets(tenant), field))

    def claim(
        self,
        *,
        worker: str = "w1",
        max_jobs: int = 1,
        max_tokens: int = 1 << 20,
        lease_ms: int = 5000,
        idle: bool = True,
        digest: str = "",
    ) -> Claims:
        room: dict[str, Any] = {"max_jobs": max_jobs, "max_tokens": max_tokens, "idle": idle}
        return self.run(self.cell.claim(MODEL, worker, lease_ms=lease_ms, digest=digest, **room))

    def claim_one(self, **options: Any) -> Claim:
        (claim,) = self.claim(**options).jobs
        return claim

    def crash(self, job_id: str, **claim_options: Any) -> Claim:
        """The job is claimed, and its owner's engine dies."""
        claim = self.claim_one(**claim_options)
        assert claim.job_id == job_id
        self.run(self.cell.release([(job_id, claim.token)], why="crashed"))
        return claim

    def append(self, claim: Claim, start: int, tokens: Sequence[int], **fields: Any) -> AppendReply:
        chunk = Chunk(token_ids=tuple(tokens), texts=tuple(f"<{t}>" for t in tokens), **fields)
        (reply,) = self.run(self.cell.append([Append(claim.job_id, claim.token, start, chunk)]))
        return reply

    def finish(self, claim: Claim, *, tokens: int, status: JobStatus = JobStatus.COMPLETED) -> FinishReply:
        terminal = Terminal(status=status, usage=Usage(prompt_tokens=3, completion_tokens=tokens))
        return self.run(self.cell.finish(claim.job_id, claim.token, terminal, wire.encode_result(terminal, [])))

    def stream(self, job_id: str, after: int = 0) -> list[Event]:
        return read_stream_sync(self.redis, job_id, after)

    def state(self, job_id: str) -> dict[str, str]:
        fields = self.redis.hgetall(self.keys.job(job_id))
        return {name.decode(): value.decode(errors="replace") for name, value in fields.items()}

    def status(self, job_id: str) -> str:
        return self.state(job_id)["st"]

    def lapse(self, job_id: str, *, due: str = "L") -> None:
        """As if the lease (L), a deadline (D) or the retention (x) had just run out."""
        self.redis.zadd(f"{self.keys.prefix}:{due}", {job_id: 1})

    def pass_limit(self, job_id: str, field: str) -> None:
        """As if a job's deadline (dl) or start-by limit (qdl) had just passed."""
        assert self.redis.hexists(self.keys.job(job_id), field)
        self.redis.hset(self.keys.job(job_id), field, 1)
        self.lapse(job_id, due="D")

    def reap(self) -> int:
        return self.run(self.cell.reap()).jobs

    def counters(self) -> dict[str, int]:
        return {name.decode(): int(value) for name, value in self.redis.hgetall(f"{self.keys.prefix}:q").items()}

    def immortal_keys(self) -> set[str]:
        """Names without TTL, without the cell's prefix."""
        names = [name.decode() for name in self.redis.scan_iter() if self.redis.ttl(name) == -1]
        return {name.removeprefix(f"{self.keys.prefix}:") for name in names}


@pytest.fixture
def world(redis_sync: redis.Redis) -> World:
    return World(redis_sync)


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """The fake worker's, whose model is known."""
    async with connect(redis_url) as opened:
        await fake.register(opened)
        yield opened


@pytest.fixture
async def client(redis_url: str, connection: redis.asyncio.Redis) -> AsyncIterator[AsyncClient]:
    """One that can have jobs of the fake worker's model."""
    async with AsyncClient(redis_url) as opened:
        yield opened


@pytest.fixture
def request_of() -> Any:
    return make_request
