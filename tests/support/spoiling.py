"""A cell full of jobs in every state, every way to spoil one thing in it, and a fleet that runs it to its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgpack
import redis

from octavo.queue import wire
from octavo.queue.calls import run_sync
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, Cell, Claim
from octavo.queue.streams import parse_entries
from octavo.queue.tenants.limits import TenantCell
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo.terms.workers import ModelCard

MODEL, TOKENS, LEASE_MS = "toy", 6, 60_000
CELL, KEYS = Cell(), Keys()


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


RUBBISH: dict[str, bytes] = {
    "empty": b"",
    "text": b"somebody else's",
    "negative": b"-7",
    "fraction": b"1.5",
    "huge": b"9" * 30,
    "largest": b"9223372036854775807",
    "nan": b"nan",
    "not UTF-8": b"\xff\xfe\x80",
    "other msgpack": msgpack.packb({"a": [1, None]}),
    "message of another kind": msgpack.packb([1, "zz", {}]),
    "nested": nested(1000),
    "nested message": b"\x93\x01\xa3job\x81\xa1a" + nested(1000),
}

Spoil = Callable[[redis.Redis], Any]


@dataclass(frozen=True)
class Case:
    """One thing to spoil: where, how, and the jobs that it may cost."""

    name: str
    spoil: Spoil
    jobs: frozenset[str]


def cases(connection: redis.Redis) -> Iterator[Case]:
    """Every way to spoil one thing of a cell."""
    for name in sorted(connection.scan_iter(count=1000)):
        kind = connection.type(name)
        owners = _jobs_of(name)
        yield Case(f"{name!r} missing", lambda c, name=name: c.delete(name), owners)
        for other in ("string", "list", "hash", "zset", "stream", "set"):
            if other.encode() != kind:
                yield Case(f"{name!r} is a {other}", lambda c, name=name, o=other: _replace(c, name, o), owners)
        yield from _MEMBERS[kind](connection, name, owners)


def _jobs_of(name: bytes) -> frozenset[str]:
    return frozenset(re.findall(r"g00_\w{26}", name.decode()))


def _replace(c: redis.Redis, name: bytes, kind: str) -> None:
    c.delete(name)
    match kind:
        case "string":
            c.set(name, "somebody else's")
        case "list":
            c.rpush(name, "somebody else's")
        case "hash":
            c.hset(name, "somebody", "else's")
        case "zset":
            c.zadd(name, {"somebody": 1})
        case "stream":
            c.xadd(name, {"somebody": "else's"}, id="1-0")
        case "set":
            c.sadd(name, "somebody else's")


def _string_cases(c: redis.Redis, name: bytes, owners: frozenset[str]) -> Iterator[Case]:
    for what, value in RUBBISH.items():
        yield Case(f"{name!r} is {what}", lambda c, v=value: c.set(name, v, keepttl=True), owners)


def _hash_cases(c: redis.Redis, name: bytes, owners: frozenset[str]) -> Iterator[Case]:
    for field in sorted(c.hkeys(name)):
        yield Case(f"{name!r} without {field!r}", lambda c, f=field: c.hdel(name, f), owners)
        for what, value in RUBBISH.items():
            yield Case(f"{name!r} {field!r} is {what}", lambda c, f=field, v=value: c.hset(name, f, v), owners)


def _zset_cases(c: redis.Redis, name: bytes, owners: frozenset[str]) -> Iterator[Case]:
    for member in c.zrange(name, 0, -1):
        mine = owners | _jobs_of(member)
        yield Case(f"{name!r} without {member!r}", lambda c, m=member: c.zrem(name, m), mine)
        for score in (-1e300, -1, 0, 1.5, 1e300, float("inf"), float("-inf")):
            yield Case(f"{name!r} {member!r} at {score}", lambda c, m=member, s=score: c.zadd(name, {m: s}), mine)
    for what, value in RUBBISH.items():
        for score in (float("-inf"), 0):
            yield Case(f"{name!r} has {what} at {score}", lambda c, v=value, s=score: c.zadd(name, {v: s}), owners)


def _set_cases(c: redis.Redis, name: bytes, owners: frozenset[str]) -> Iterator[Case]:
    for member in c.smembers(name):
        yield Case(f"{name!r} without {member!r}", lambda c, m=member: c.srem(name, m), owners)
    for what, value in RUBBISH.items():
        yield Case(f"{name!r} has {what}", lambda c, v=value: c.sadd(name, v), owners)


def _list_cases(c: redis.Redis, name: bytes, owners: frozenset[str]) -> Iterator[Case]:
    for what, value in RUBBISH.items():
        yield Case(f"{name!r} has {what}", lambda c, v=value: c.lpush(name, v), owners)


def _stream_cases(c: redis.Redis, name: bytes, owners: frozenset[str]) -> Iterator[Case]:
    for entry, _ in c.xrange(name):
        yield Case(f"{name!r} without {entry!r}", lambda c, e=entry: c.xdel(name, e), owners)
    last = c.xrevrange(name, count=1)
    number = int(last[0][0].partition(b"-")[0]) if last else 0
    for entry in (f"{number}-7", f"{number + 5}-0", "18446744073709551615-1"):
        for what, value in RUBBISH.items():
            spoil = lambda c, e=entry, v=value: c.xadd(name, {"d": v}, id=e)  # noqa: E731
            yield Case(f"{name!r} has {what} at {entry}", spoil, owners)
        yield Case(f"{name!r} has fields at {entry}", lambda c, e=entry: c.xadd(name, {b"\xff": b"x"}, id=e), owners)


_MEMBERS: dict[bytes, Callable[..., Iterator[Case]]] = {
    b"string": _string_cases,
    b"hash": _hash_cases,
    b"zset": _zset_cases,
    b"list": _list_cases,
    b"set": _set_cases,
    b"stream": _stream_cases,
}


class LiveCell:
    """Jobs that wait in every lane, run, and have ended; what workers and readers know of them."""

    def __init__(self, connection: redis.Redis) -> None:
        self.redis = connection
        self._card = ModelCard(name=MODEL, max_model_len=512, vocab_size=256, has_tokenizer=True, created_at=1.0)
        self.run(CELL.register_model(self._card))
        limits = {"running": 1, "weight": 2000, "requests_per_minute": 10**6, "tokens_per_day": 10**9, "waiting": 1000}
        self.run(TenantCell().change("kept", limits))
        self.ended = [self.enqueue() for _ in range(2)]
        for claim in self.claim(max_jobs=2).jobs:
            self.generate(claim)
        suspect = self.enqueue()
        (claim,) = self.claim().jobs
        self.run(CELL.release([(suspect, claim.token)], why="crashed"))
        back = self.enqueue()
        (claim,) = self.claim(idle=False).jobs
        self.run(CELL.release([(back, claim.token)], why="back"))
        (claim,) = self.claim(idle=False).jobs
        half = Chunk(token_ids=(0, 1, 2), texts=("0", "1", "2"))
        self.run(CELL.append([Append(claim.job_id, claim.token, 0, half)]))
        self.run(CELL.release([(back, claim.token)], why="back"))
        for _ in range(2):
            self.enqueue(priority="high", timeout_s=600.0, metadata={"a": "b"})
        for _ in range(2):
            self.enqueue(tenant="kept", priority="high")  # one runs, then the tenant is parked
        self.held = sorted(self.claim(max_jobs=5, idle=False).jobs, key=lambda claim: -claim.offset)
        assert len(self.held) == 4
        self.run(CELL.append([Append(claim.job_id, claim.token, claim.offset, half) for claim in self.held[1:]]))
        self.run(CELL.attach(self.held[0].job_id, "reader"))
        for tenant, priority in (("acme", "high"), ("acme", "normal"), ("zoo", "normal"), ("acme", "batch")):
            self.enqueue(tenant=tenant, priority=priority, key=f"k{priority}", queue_timeout_s=600.0)
        info = b""
        self.run(
            CELL.heartbeat("w1", [(claim.job_id, claim.token) for claim in self.held], lease_ms=LEASE_MS, info=info)
        )
        self.run(CELL.reap())
        self.jobs = sorted(name.decode().rpartition(":")[2] for name in connection.scan_iter(f"{KEYS.prefix}:j:*"))
        self._kept = [(name, connection.dump(name), connection.pttl(name)) for name in connection.scan_iter(count=1000)]

    def restore(self) -> None:
        """As it was."""
        pipeline = self.redis.pipeline()
        pipeline.flushall()
        for name, value, ttl in self._kept:
            pipeline.restore(name, max(0, ttl), value)
        pipeline.execute()

    def run(self, call: Any) -> Any:
        return run_sync(self.redis, call)

    def enqueue(self, *, tenant: str = "acme", key: str | None = None, **fields: Any) -> str:
        request = JobRequest(model=MODEL, prompt="p", sampling=SamplingParams(max_tokens=TOKENS), **fields)
        call = CELL.enqueue(
            KEYS.new_job_id(), request, seed=1, tenant=tenant, idempotency_key=key, limits=Limits(),
            retention=Retention(),
        )  # fmt: skip
        return str(self.run(call).job_id)

    def claim(self, *, max_jobs: int = 1, idle: bool = True) -> Any:
        return self.run(CELL.claim(MODEL, "w1", max_jobs=max_jobs, max_tokens=1 << 20, lease_ms=LEASE_MS, idle=idle))

    def generate(self, claim: Claim, start: int | None = None) -> None:
        """Plays a worker: generates all that is left of a job, and reacts where the server refuses it."""
        offset = claim.offset if start is None else start
        try:
            for _ in range(5):
                tokens = range(offset, TOKENS)
                chunk = Chunk(token_ids=tuple(tokens), texts=tuple(map(str, tokens)))
                if chunk.token_ids:
                    (reply,) = self.run(CELL.append([Append(claim.job_id, claim.token, offset, chunk)]))
                    if reply.state == "fenced":
                        return
                    offset = reply.offset
                terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(completion_tokens=TOKENS))
                chunks = [Chunk(token_ids=tuple(range(TOKENS)), texts=tuple(map(str, range(TOKENS))))]
                done = self.run(CELL.finish(claim.job_id, claim.token, terminal, wire.encode_result(terminal, chunks)))
                if done.state != "rewind":
                    return
                offset = done.offset
        except redis.ResponseError:
            pass
        self.run(CELL.release([(claim.job_id, claim.token)], why="crashed"))

    def run_out(self) -> None:
        """Everything that still can end ends, and one more. No call but those on one spoiled job alone may fail."""
        self.run(CELL.register_model(self._card))  # as workers do where it is forgotten
        self.late = self.enqueue()
        beat = [(claim.job_id, claim.token) for claim in self.held]
        lost = self.run(CELL.heartbeat("w1", beat, lease_ms=LEASE_MS, info=b"")).lost
        for claim in self.held:
            if claim.job_id not in lost:
                self.generate(claim)
        idle = 0
        while idle < 4:
            if idle == 2:
                self.pass_time()
            self.run(CELL.reap())
            claims = self.claim(max_jobs=8)
            idle = 0 if claims.jobs or claims.unreadable else idle + 1
            for claim in claims.jobs:
                self.generate(claim)
            for broken in claims.unreadable:
                terminal = Terminal(status=JobStatus.FAILED, usage=Usage(completion_tokens=broken.offset))
                self.run(CELL.finish(broken.job_id, broken.token, terminal, b""))

    def pass_time(self) -> None:
        """All leases run out, after a while without faults, and suspects have waited for long enough."""
        self.redis.hset(f"{KEYS.prefix}:reaper", mapping={"at": int(self.redis.time()[0] * 1000), "grace": 0})
        for name in ("L", "b:solo:toy"):
            for member in self.redis.zrange(f"{KEYS.prefix}:{name}", 0, -1):
                self.redis.zadd(f"{KEYS.prefix}:{name}", {member: 1})

    def problems(self, excused: frozenset[str]) -> list[str]:
        """Jobs that did not end, and those beside the excused that did not end right."""
        found = []
        for job in (*self.jobs, self.late):
            try:
                status = self.redis.hget(KEYS.job(job), "st")
            except redis.ResponseError:
                status = b"not a hash"
            if job in excused:
                if job not in self.ended and status not in (None, b"completed", b"failed", b"expired", b"cancelled"):
                    found.append(f"{job} was spoiled and is {status!r}")
            elif status != b"completed":
                found.append(f"{job} is {status!r}")
            else:
                events = parse_entries(self.redis.xrange(KEYS.stream(job)), 0)
                tokens = [token for event in events for token in event.token_ids]
                if tokens != list(range(TOKENS)) or not events[-1].end:
                    found.append(f"{job} has tokens {tokens}")
        return found
