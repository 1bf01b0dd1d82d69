"""A batch of one tenant on a real server, driven synchronously: owners, workers, and what they leave."""

from __future__ import annotations

from typing import Any

import redis

from octavo.queue import wire
from octavo.queue.batches.calls import BatchCell, Commit, Member, NewBatch, NewFile, Part, Skipped
from octavo.queue.batches.keys import BATCH, FILE, BatchKeys, new_id
from octavo.queue.calls import run_sync
from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell, LineOfBatch
from octavo.terms.batches import BatchStatus, BatchUsage
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import JobStatus, Terminal, Usage
from octavo.terms.models import JobRequest
from octavo.terms.workers import ModelCard

CELL, BATCHES, KEYS, BATCH_KEYS = Cell(), BatchCell(), Keys(), BatchKeys()
TOTAL = 7
JOBS = (1, 2, 0, 1, 3, 0, 1)  # of each line; none: its content was refused
LEASE_MS = 60_000


class Bench:
    """One batch, its file and its tenant."""

    def __init__(self, url: str, *, is_first: bool = True) -> None:
        self.redis = redis.Redis.from_url(url)
        if is_first:
            self.redis.flushall()
        card = ModelCard(name="m", max_model_len=64, vocab_size=256, has_tokenizer=True, created_at=1.0)
        self.run(CELL.register_model(card))
        self.file = new_id(FILE)
        self.run(BATCHES.note_file(NewFile(self.file, "acme", "in.jsonl", "batch", 100, "00"), cap=1000))
        self.batch = self.create()

    def run(self, call: Any) -> Any:
        return run_sync(self.redis, call)

    def create(self, **options: Any) -> str:
        new = NewBatch(new_id(BATCH), "acme", "/v1/completions", self.file, "24h", 86_400)
        return str(self.run(BATCHES.create(new, **options)))

    def submit(self, token: str, place: int, index: int = 0) -> str:
        request = JobRequest(model="m", prompt=f"{place}")
        call = CELL.enqueue(
            KEYS.new_job_id(), request, seed=1, tenant="acme", idempotency_key=f"batch\n{self.batch}\n{place}\n{index}",
            limits=Limits(), retention=Retention(), line=LineOfBatch(self.batch, token, place, index),
        )  # fmt: skip
        return str(self.run(call).job_id)

    def end_one(self, status: JobStatus = JobStatus.COMPLETED, *, as_before: bool = False) -> None:
        """Plays a worker; `as_before`: one of a version that does not know of batches."""
        claims = self.run(CELL.claim("m", "w", max_jobs=1, max_tokens=1 << 20, lease_ms=LEASE_MS, idle=True))
        for claim in claims.jobs:
            of_batch = self.redis.hget(KEYS.job(claim.job_id), "bt")
            if as_before:
                self.redis.hdel(KEYS.job(claim.job_id), "bt")
            terminal = Terminal(status=status, usage=Usage())
            self.run(CELL.finish(claim.job_id, claim.token, terminal, wire.encode_result(terminal, [])))
            if as_before:
                self.redis.hset(KEYS.job(claim.job_id), "bt", of_batch)

    def lapse(self) -> None:
        if self.redis.zscore("{c00}:btL", self.batch):
            self.redis.zadd("{c00}:btL", {self.batch: 1})

    def field(self, name: str) -> str:
        return (self.redis.hget(BATCH_KEYS.batch(self.batch), name) or b"").decode()

    def members(self, name: str) -> list[Member]:
        found = [Member.of(text) for text in self.redis.zrange(name, 0, -1)]
        return [member for member in found if member is not None]

    def parts(self) -> list[Part]:
        return [Part.decode(text) for text in self.redis.lrange(BATCH_KEYS.parts(self.batch), 0, -1)]

    def harvest(self, token: str, limit: int = 100) -> str:
        """Puts lines whose jobs have all ended into a part that is named after them."""
        cursor, number = int(self.field("cur") or 0), len(self.parts())
        by_place: dict[int, list[Member]] = {}
        for member in self.members(BATCH_KEYS.ended_jobs(self.batch)):
            by_place.setdefault(member.place, []).append(member)
        lines = [
            (place, members)
            for place, members in sorted(by_place.items())
            if place < cursor and len(members) == max(1, JOBS[place])
        ][:limit]
        if not lines:
            return "nothing"
        commit = Commit(
            Part(_name(number, [place for place, _ in lines]), 1, 1), number, [m for _, ms in lines for m in ms],
            completed=sum(JOBS[place] > 0 for place, _ in lines), failed=sum(JOBS[place] == 0 for place, _ in lines),
            usage=BatchUsage(len(lines)),
        )  # fmt: skip
        call = BATCHES.commit(self.batch, token, commit)
        first = self.run(call)
        assert self.run(call) == first  # its reply may have been lost
        return str(first.state)

    def bring_to_end(self, token: str) -> list[int]:
        """An owner's work from any state to the end of the batch. The places that its parts hold then."""
        if self.field("st") in ("completed", "cancelled", "expired", "failed"):
            return []
        self.run(BATCHES.begin(self.batch, token, total=TOTAL, model="m"))
        for place in range(int(self.field("cur") or 0), TOTAL):
            if self.field("st") == "in_progress":
                for index in range(JOBS[place]):
                    self.submit(token, place, index)
                rejected = [] if JOBS[place] else [place]
                self.run(BATCHES.advance(self.batch, token, place, place + 1, rejected))
        for _ in range(2 * sum(JOBS) + 1):
            self.end_one()
        self.run(BATCHES.recheck(self.batch, token, ()))
        self.run(BATCHES.recheck(self.batch, token, self.members(BATCH_KEYS.open_jobs(self.batch))))
        if self.field("st") in ("in_progress", "cancelling"):
            self.skip(token)
            self.harvest(token)
        parts = [place for part in self.parts() for place in places_of(part)]
        end = BatchStatus.CANCELLED if self.field("st") == "cancelling" else BatchStatus.COMPLETED
        self.run(BATCHES.close(self.batch, token))
        outcome = self.run(BATCHES.finish(self.batch, token, end))
        assert outcome == "ok", (outcome, self.field("st"))
        return parts if self.field("total") else []

    def skip(self, token: str) -> str:
        cursor, number = int(self.field("cur") or 0), len(self.parts())
        if cursor >= TOTAL or not self.field("total"):
            return "nothing"
        by_place: dict[int, list[Member]] = {}
        for name in (BATCH_KEYS.open_jobs(self.batch), BATCH_KEYS.ended_jobs(self.batch)):
            for member in self.members(name):
                if member.place >= cursor:
                    by_place.setdefault(member.place, []).append(member)
        whole = [place for place, members in by_place.items() if len(members) == JOBS[place]]
        dropped = [member for place, members in by_place.items() if place not in whole for member in members]
        part = Part(_name(number, [place for place in range(cursor, TOTAL) if place not in whole]), 0, 1)
        skipped = Skipped(cursor, TOTAL, sum(len(by_place[place]) for place in whole), dropped)
        commit = Commit(part, number, [], skipped=skipped)
        call = BATCHES.commit(self.batch, token, commit)
        first = self.run(call)
        assert self.run(call) == first
        return str(first.state)


def _name(number: int, places: Any) -> str:
    return f"{number}-" + ".".join(map(str, places))


def places_of(part: Part) -> list[int]:
    return [int(place) for place in part.name.partition("-")[2].split(".") if place]
