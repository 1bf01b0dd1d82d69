"""Endpoints and deliveries on a real server, driven synchronously: jobs that end, and owners of tries."""

from __future__ import annotations

from typing import Any

import redis

from octavo.queue import wire
from octavo.queue.batches.keys import new_id
from octavo.queue.calls import run_sync
from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell
from octavo.queue.webhooks.calls import Tries, Try, WebhookCell
from octavo.queue.webhooks.keys import ENDPOINT, WebhookKeys
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import JobStatus, Terminal, Usage
from octavo.terms.models import JobRequest
from octavo.terms.webhooks import EVENT_TYPES
from octavo.terms.workers import ModelCard

CELL, HOOKS, KEYS, HOOK_KEYS = Cell(), WebhookCell(), Keys(), WebhookKeys()
LEASE_MS = 60_000


class HookBench:
    """A server with a model, and workers of it that end jobs at once."""

    def __init__(self, url: str) -> None:
        self.redis = redis.Redis.from_url(url)
        self.redis.flushall()
        card = ModelCard(name="m", max_model_len=64, vocab_size=256, has_tokenizer=True, created_at=1.0)
        self.run(CELL.register_model(card))

    def run(self, call: Any) -> Any:
        return run_sync(self.redis, call)

    def endpoint(
        self, tenant: str = "acme", *types: str, name: str = "n", url: str = "https://example.com/hook"
    ) -> str:
        made = new_id(ENDPOINT)
        call = HOOKS.put(made, tenant, is_new=True, name=name, url=url, event_types=types or EVENT_TYPES)
        assert self.run(call) == "ok"
        return made

    def submit(
        self, tenant: str = "acme", *, notify: bool = True, background: bool = False, trace: str = "", **fields: Any
    ) -> str:
        request = JobRequest(model="m", prompt="p", notify=notify, **fields)
        call = CELL.enqueue(
            KEYS.new_job_id(), request, seed=1, tenant=tenant, idempotency_key=None, limits=Limits(),
            retention=Retention(), background=background, trace=trace,
        )  # fmt: skip
        return str(self.run(call).job_id)

    def end(self, status: JobStatus = JobStatus.COMPLETED, *, is_cut: bool = False) -> Any:
        """A worker takes one job and ends it. The call that did."""
        (claim,) = self.run(CELL.claim("m", "w", max_jobs=1, max_tokens=1 << 20, lease_ms=LEASE_MS, idle=True)).jobs
        terminal = Terminal(status=status, usage=Usage())
        call = CELL.finish(claim.job_id, claim.token, terminal, wire.encode_result(terminal, []), is_cut=is_cut)
        assert self.run(call)
        return call

    def event(self, tenant: str = "acme") -> str:
        """The id of the event of a job that ended now."""
        job = self.submit(tenant)
        self.end()
        return f"evt_{job}"

    def claim(self, most: int = 100) -> list[Try]:
        found: Tries = self.run(HOOKS.claim(lease_ms=LEASE_MS, most=most))
        return list(found.due)

    def lapse(self, tried: Try) -> None:
        """The lease of a try runs out."""
        self.redis.zadd(HOOK_KEYS.tried(tried.endpoint_id), {tried.event_id: 1})
        self.redis.zadd(f"{{c00}}:hr:{tried.tenant}", {tried.endpoint_id: 1})
        self.redis.zadd("{c00}:ht", {tried.tenant: 1})

    def come_due(self) -> None:
        """All pauses are over."""
        for name in self.redis.scan_iter("{c00}:hq:*"):
            for event in self.redis.zrange(name, 0, -1):
                self.redis.zadd(name, {event: 1})
        for name in [*self.redis.scan_iter("{c00}:hr:*"), "{c00}:ht"]:
            for member in self.redis.zrange(name, 0, -1):
                self.redis.zadd(name, {member: 1})

    def kinds(self) -> list[tuple[str, str]]:
        """Type and subject of all deliveries that wait."""
        found = []
        for name in self.redis.scan_iter("{c00}:hd:*"):
            kind, of, state = self.redis.hmget(name, "typ", "of", "st")
            if state == b"waiting":
                found.append((kind.decode(), of.decode()))
        return sorted(found)

    def leftovers(self) -> list[bytes]:
        """Keys of deliveries that are there."""
        kinds = ("hd", "hq", "hl", "hr", "ht", "ho", "hf", "hx")
        return [name for name in self.redis.scan_iter("{c00}:h*") if name.split(b":")[1].decode() in kinds]
