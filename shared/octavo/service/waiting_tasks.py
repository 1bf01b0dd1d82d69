"""Tasks of a Celery application that wait for jobs: kept beside the jobs, so that no process need remember them.

A task is kept, as the message that starts it, from before it is first sent until its result is stored. Whatever loses a
message on the way loses nothing: the task can be sent again, and its job is found by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import ResponseError

from octavo.queue.calls import run_sync
from octavo.queue.keys import JobHash, Keys
from octavo.queue.protocol import Cell
from octavo.terms.messages import JobStatus

PREFIX = "celery:"  # of a task's id in its job's idempotency key
_MOST = 500


@dataclass(frozen=True)
class WaitingTasks:
    """Celery tasks of one tenant's application that wait for their jobs. Methods raise what redis-py raises."""

    connection: redis.Redis
    tenant: str
    app: str
    keys: Keys = Keys()  # noqa: RUF009 (frozen)

    @property
    def name(self) -> str:
        return f"{self.tenant}:{self.app}"

    def keep(self, task_id: str, message: bytes, *, sent: float, due: float | None) -> None:
        """`sent` is when a worker may have it first, `due` when it expires."""
        with self.connection.pipeline(transaction=False) as pipeline:
            pipeline.hset(self.keys.tasks(self.name), task_id, message)
            pipeline.zadd(self.keys.tasks_sent(self.name), {task_id: sent})
            if due is None:
                pipeline.zrem(self.keys.tasks_due(self.name), task_id)
            else:
                pipeline.zadd(self.keys.tasks_due(self.name), {task_id: due})
            pipeline.execute()

    def drop(self, task_id: str) -> None:
        """Forgets a task whose result is stored."""
        with self.connection.pipeline(transaction=False) as pipeline:
            pipeline.hdel(self.keys.tasks(self.name), task_id)
            pipeline.zrem(self.keys.tasks_sent(self.name), task_id)
            pipeline.zrem(self.keys.tasks_due(self.name), task_id)
            pipeline.execute()

    def message(self, task_id: str) -> bytes | None:
        """The message of a task; None: it does not wait."""
        message: Any = self.connection.hget(self.keys.tasks(self.name), task_id)
        return None if message is None else bytes(message)

    def touch(self, task_ids: Sequence[str], now: float) -> None:
        """Notes that tasks were sent, or looked at, unless they have been dropped meanwhile."""
        if task_ids:
            self.connection.zadd(self.keys.tasks_sent(self.name), dict.fromkeys(task_ids, now), xx=True)

    def unseen(self, since: float) -> list[str]:
        """Some of the tasks that were neither sent nor looked at since then."""
        found: Any = self.connection.zrangebyscore(self.keys.tasks_sent(self.name), "-inf", since, start=0, num=_MOST)
        return [task_id.decode() for task_id in found]

    def due(self, now: float, *, until: float) -> list[str]:
        """Tasks that have expired. Each is told again and again, until it did so before `until`."""
        found: Any = self.connection.zrangebyscore(self.keys.tasks_due(self.name), "-inf", now)
        if found:
            self.connection.zremrangebyscore(self.keys.tasks_due(self.name), "-inf", until)
        return [task_id.decode() for task_id in found]

    def job_states(self, task_ids: Sequence[str]) -> list[JobStatus | None]:
        """Status of each task's job; None: it has none yet."""
        jobs = self._jobs(task_ids)
        with self.connection.pipeline(transaction=False) as pipeline:
            for job_id in jobs:
                pipeline.hget(self.keys.job(job_id or "-"), JobHash.STATUS)
            states = pipeline.execute()
        return [JobStatus(state.decode()) if state else None for state in states]

    def cancel_jobs(self, task_ids: Sequence[str]) -> None:
        """Cancels jobs that wait or run."""
        for job_id in self._jobs(task_ids):
            if job_id is not None:
                run_sync(self.connection, Cell(self.keys).cancel(job_id))

    def ended(self, wait_s: float) -> list[str]:
        """Tasks whose jobs have ended since the last call by any worker of the application: each is told to one of
        them, once. Waits for the first."""
        group = f"celery:{self.name}"
        try:
            read: Any = self.connection.xreadgroup(
                group, "workers", {self.keys.outbox: ">"}, count=_MOST, block=round(wait_s * 1000), noack=True
            )
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            self.connection.xgroup_create(self.keys.outbox, group, id="$", mkstream=True)
            return []
        jobs = [fields[b"id"].decode() for _, entries in _streams(read) for _, fields in entries]
        with self.connection.pipeline(transaction=False) as pipeline:
            for job_id in jobs:
                pipeline.hmget(self.keys.job(job_id), JobHash.TENANT, JobHash.IDEMPOTENCY_KEY)
            found = pipeline.execute()
        names = [key.decode() for tenant, key in found if key and tenant == self.tenant.encode()]
        return [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]

    def takes_turn(self, seconds: float) -> bool:
        """True if the caller is the one worker to look after lost tasks, for so long."""
        lock = f"{self.keys.tasks_sent(self.name)}:turn"
        return bool(self.connection.set(lock, 1, nx=True, px=round(seconds * 1000)))

    def _jobs(self, task_ids: Sequence[str]) -> list[str | None]:
        names = [self.keys.idempotency(self.tenant, PREFIX + task_id) for task_id in task_ids]
        found: Any = self.connection.mget(names) if names else []
        return [value.decode().split()[0] if value else None for value in found]


def _streams(read: Any) -> list[Any]:
    """A mapping in RESP3, a list of pairs in RESP2."""
    return list(read.items()) if isinstance(read, dict) else list(read or ())
