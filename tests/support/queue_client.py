"""A queue as clients and operators see it, and the fake model's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import redis
from fake_runner import next_token
from sync_streams import read_stream_sync
from waiting import STALL_S, eventually

from octavo.queue import wire
from octavo.queue.calls import run_sync
from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell
from octavo.queue.streams import assemble
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import JobStatus
from octavo.terms.models import JobRequest, Result
from octavo.terms.workers import ModelCard

MODEL = "demo"
VOCABULARY = 2048  # of the bundled model's tokenizer
# A transaction would be refused by a Redis 7.0 whose memory is full.
_FIELDS = """#!lua flags=no-writes
local rows = {}
for i, key in ipairs(KEYS) do rows[i] = redis.call('HMGET', key, unpack(ARGV)) end
return rows
"""


Answers = list[list[tuple[tuple[int, ...], str, str | None]]]


@dataclass
class Queue:
    """Actions of a client and an operator, one call each."""

    connection: redis.Redis
    cell: Cell

    def submit(self, prompt: object = (7, 8, 9), *, seed: int = 1, tenant: str = "t", **fields: object) -> str:
        request = JobRequest.model_validate({"model": MODEL, "prompt": prompt, **fields})
        call = self.cell.enqueue(
            self.cell.keys.new_job_id(), request,
            seed=seed, tenant=tenant, idempotency_key=None, limits=Limits(), retention=Retention(),
        )  # fmt: skip
        return run_sync(self.connection, call).job_id

    def field(self, job_id: str, name: str) -> str | None:
        value = self.connection.hget(self.cell.keys.job(job_id), name)  # a transaction would need memory
        return None if value is None else value.decode()

    def fields(self, job_ids: list[str], *names: str) -> list[list[str | None]]:
        """Fields of many jobs at one moment."""
        keys = [self.cell.keys.job(job_id) for job_id in job_ids]
        rows = self.connection.eval(_FIELDS, len(keys), *keys, *names)
        return [[None if value is None else value.decode() for value in values] for values in rows]

    def status(self, job_id: str) -> JobStatus:
        return JobStatus(self.field(job_id, "st") or "")

    def stored(self, job_id: str) -> int:
        return int(self.field(job_id, "n") or 0)

    def in_progress(self, worker_id: str, job_ids: list[str]) -> list[str]:
        """Jobs that the worker is well into."""
        states = zip(job_ids, self.fields(job_ids, "wid", "st", "n"), strict=True)
        return [job for job, (who, st, n) in states if (who, st) == (worker_id, "running") and int(n or 0) > 5]

    def in_mid_run(
        self, worker_id: str, submit_all: Callable[[], list[str]], wanted: int
    ) -> tuple[list[str], list[str]]:
        """Jobs, and those of them that the worker is well into. They are submitted again, and fewer are wanted, where
        they ended before so many were seen: a busy machine may look too late."""
        while True:
            jobs = submit_all()
            while not all(self.status(job).is_terminal for job in jobs):
                if len(hit := self.in_progress(worker_id, jobs)) >= wanted:
                    return jobs, hit
            wanted = max(1, wanted // 2)

    def wait(self, job_id: str, timeout: float = STALL_S) -> Result:
        """The result, after checking that the stream tells the same story: gapless, no repeats, one end."""
        eventually(lambda: self.status(job_id).is_terminal, timeout, f"job {job_id} did not end")
        events = read_stream_sync(self.connection, job_id)
        offset = 0
        for event in events[:-1]:
            assert event.chunk is not None
            offset += len(event.chunk.token_ids)
            assert event.offset == offset, "the stream has a gap or a repeat"
        assert events[-1].end is not None
        from_stream = assemble(job_id, MODEL, events[-1].end, [e.chunk for e in events if e.chunk])
        blob = self.connection.get(self.cell.keys.result(job_id))
        if blob is None:
            return from_stream
        result = assemble(job_id, MODEL, *wire.decode_result(blob))
        if result.usage.completion_tokens:
            assert result == from_stream
        return result


def expected(prompt: list[int], count: int, *, seed: int = 1, index: int = 0) -> list[int]:
    """The fake model's answer."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history, seed, index, VOCABULARY))
    return history[len(prompt) :]


def known_queue(connection: redis.Redis) -> Queue:
    """A queue that accepts jobs before the first worker has announced its model."""
    cell = Cell(Keys())
    card = ModelCard(name=MODEL, max_model_len=1024, vocab_size=VOCABULARY, has_tokenizer=True, created_at=0.0)
    run_sync(connection, cell.register_model(card))
    return Queue(connection, cell)


def answers(results: list[Result]) -> Answers:
    """Answers of completed jobs, by job and sequence."""
    assert all(result.status is JobStatus.COMPLETED for result in results)
    return [[(s.token_ids, s.text, s.finish_reason) for s in result.sequences] for result in results]
