"""Whole workers full of batch jobs: a job of a higher class, or of another tenant, runs while they do."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from queue_client import Queue, expected, known_queue
from waiting import eventually
from worker_process import WorkerProcess

from octavo.terms.messages import JobStatus

PROMPT = list(range(300, 330))
ROWS = 8
STEPS = 500  # of a batch job, 10 ms each at least

Start = Callable[..., WorkerProcess]


@pytest.fixture
def queue(redis_sync: redis.Redis) -> Queue:
    return known_queue(redis_sync)


@pytest.fixture
def start(redis_url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts workers on the fake engine."""
    with ExitStack() as stack:

        def begin(number: int = 0, **flags: object) -> WorkerProcess:
            flags = {"num_blocks": 2000, "swap_memory": 1, "lease": 1.0, "max_running": ROWS, **flags}
            worker = WorkerProcess(redis_url, tmp_path / f"worker{number}.log", fake="step_seconds=0.01", **flags)
            return stack.enter_context(worker).wait_ready()

        yield begin


def prompt(number: int) -> list[int]:
    return [*PROMPT, number]


def fill(queue: Queue, count: int, *, tokens: int = STEPS, **fields: object) -> list[str]:
    """Jobs of class batch, unless `fields` say otherwise, all of which run."""
    sampling = {"max_tokens": tokens, "ignore_eos": True}
    fields = {"priority": "batch", **fields}
    jobs = [queue.submit(prompt(number), seed=number, sampling=sampling, **fields) for number in range(count)]
    eventually(lambda: all(int(row[0] or 0) > 0 for row in queue.fields(jobs, "n")))
    return jobs


def check(queue: Queue, jobs: list[str], *, tokens: int = STEPS) -> None:
    """All end with what they say undisturbed."""
    for number, job in enumerate(jobs):
        result = queue.wait(job)
        assert result.status is JobStatus.COMPLETED
        assert list(result.sequences[0].token_ids) == expected(prompt(number), tokens, seed=number)


def begins_beside(queue: Queue, jobs: list[str], **fields: object) -> None:
    """A job has its first token before any of the others has ended."""
    job = queue.submit(**{"prompt": PROMPT, "sampling": {"max_tokens": 5, "ignore_eos": True}, **fields})
    eventually(lambda: queue.stored(job) > 0)
    assert queue.fields(jobs, "st") == [["running"]] * len(jobs)
    queue.wait(job)


def owners(queue: Queue, jobs: list[str]) -> list[str | None]:
    return [row[0] for row in queue.fields(jobs, "wid")]


@pytest.mark.full
def test_higher_jobs_run_while_batch_jobs_hold_all_rows(queue: Queue, start: Start) -> None:
    start()
    low = fill(queue, ROWS)
    begins_beside(queue, low, priority="high")
    begins_beside(queue, low)
    begins_beside(queue, low, sampling={"max_tokens": 5, "ignore_eos": True, "n": 4})
    check(queue, low)


@pytest.mark.full
def test_a_high_job_runs_while_batch_jobs_hold_all_blocks(queue: Queue, start: Start) -> None:
    worker = start(num_blocks=160)
    low = fill(queue, ROWS)
    eventually(lambda: (info := worker.info()) is not None and info.stats.free_blocks < 20)
    begins_beside(queue, low, priority="high", prompt=list(range(500, 900)))
    check(queue, low)


@pytest.mark.full
def test_another_tenant_runs_while_one_holds_all_rows(queue: Queue, start: Start) -> None:
    start()
    mine = fill(queue, ROWS, tenant="mine")
    begins_beside(queue, mine, priority="batch", tenant="other")
    check(queue, mine)


@pytest.mark.full
def test_a_takeover_of_batch_jobs_shuts_out_no_high_job(queue: Queue, start: Start) -> None:
    first = start(0)
    low = fill(queue, ROWS)
    second = start(1)
    first.send(signal.SIGKILL)
    own = second.id
    eventually(lambda: owners(queue, low) == [own] * ROWS)
    begins_beside(queue, low, priority="high")
    check(queue, low)


@pytest.mark.full
def test_two_full_workers_share_what_comes_of_a_higher_class(queue: Queue, start: Start) -> None:
    workers = [start(0), start(1)]
    low = fill(queue, 2 * ROWS)
    high = fill(queue, 2 * ROWS, priority="high", tokens=60)
    assert set(owners(queue, high)) == {worker.id for worker in workers}
    check(queue, high, tokens=60)
    check(queue, low)


@pytest.mark.full
def test_preempted_jobs_go_on_with_a_worker_that_comes_up(queue: Queue, start: Start) -> None:
    start(0)
    low = fill(queue, ROWS)
    high = fill(queue, ROWS, priority="high", tokens=900)
    own = start(1).id
    eventually(lambda: own in owners(queue, low))
    assert own not in owners(queue, high)
    check(queue, low)
