"""Faults, of which a reader of the stream sees nothing. Real processes, real server, fake model."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import redis
from killable_server import forgotten_by, killable_server
from loading_server import loading_server
from queue_client import MODEL, Queue, expected, known_queue
from spoiling import RUBBISH
from transformers import BloomConfig
from waiting import STALL_S, eventually, until
from worker_process import WorkerProcess

from octavo import AsyncClient, Client
from octavo.client.handles import AsyncJob
from octavo.queue.calls import run_sync
from octavo.service.server import EmbeddedServer
from octavo.terms.messages import JobStatus

PROMPT = (7, 8, 9)
SLOW = "step_seconds=0.01"


def sampling(max_tokens: int, **fields: object) -> dict[str, object]:
    return {"max_tokens": max_tokens, "ignore_eos": True, **fields}


def submit_many(queue: Queue, count: int, max_tokens: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
    """Jobs of one or two sequences: id to (prompt, seed, n)."""
    jobs = {}
    for number in range(count):
        prompt, n = (10 + number, 5, 6), 1 + number % 2
        job_id = queue.submit(prompt, seed=number, sampling=sampling(max_tokens, n=n))
        jobs[job_id] = (prompt, number, n)
    return jobs


def assert_undisturbed(queue: Queue, jobs: dict[str, tuple[tuple[int, ...], int, int]], max_tokens: int) -> None:
    for job_id, (prompt, seed, n) in jobs.items():
        result = queue.wait(job_id)
        assert result.status is JobStatus.COMPLETED
        wanted = [expected(list(prompt), max_tokens, seed=seed, index=index) for index in range(n)]
        assert [list(sequence.token_ids) for sequence in result.sequences] == wanted
        assert all(sequence.finish_reason == "length" for sequence in result.sequences)


def crashes(queue: Queue, job_id: str) -> int:
    return int(queue.field(job_id, "crashes") or 0)


def test_killed_engine_passes_its_jobs_on_at_once(queue: Queue, start_worker):
    workers = [start_worker(SLOW, lease=10.0).wait_ready() for _ in range(2)]
    jobs = submit_many(queue, 24, 100)
    eventually(lambda: all(queue.stored(job) > 10 for job in jobs))
    owner = queue.field([*jobs][-1], "wid")
    (victim,) = [worker for worker in workers if worker.id == owner]
    os.kill(victim.engine_pid, signal.SIGKILL)
    assert_undisturbed(queue, jobs, 100)
    assert max(crashes(queue, job) for job in jobs) == 1
    assert all(worker.process.poll() is None for worker in workers)
    eventually(lambda: (info := victim.info()) is not None and info.stats.free_blocks > 0)


@pytest.mark.full
def test_lone_worker_restarts_its_engine_and_goes_on(queue: Queue, start_worker):
    worker = start_worker(SLOW, lease=10.0).wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(100))
    eventually(lambda: queue.stored(job) > 10)
    os.kill(worker.engine_pid, signal.SIGKILL)
    assert list(queue.wait(job).token_ids) == expected(list(PROMPT), 100)
    assert crashes(queue, job) == 1


def test_killed_worker_loses_its_jobs_to_another_and_leaves_no_engine(queue: Queue, start_worker):
    first = start_worker(SLOW, own_start=True).wait_ready()
    jobs = submit_many(queue, 16, 120)
    eventually(lambda: all(queue.stored(job) > 10 for job in jobs))
    engine = first.engine_pid
    first.send(signal.SIGKILL)
    second = start_worker(SLOW, lease=10.0)
    eventually(lambda: not Path(f"/proc/{engine}").exists())
    assert_undisturbed(queue, jobs, 120)
    assert {crashes(queue, job) for job in jobs} == {1}
    assert second.process.poll() is None


@pytest.mark.full
def test_zombie_is_fenced(queue: Queue, start_worker):
    first = start_worker(SLOW).wait_ready()
    jobs = submit_many(queue, 8, 150)
    eventually(lambda: all(queue.stored(job) > 10 for job in jobs))
    first.send(signal.SIGSTOP)
    second = start_worker(SLOW)
    eventually(lambda: all(int(queue.field(job, "ep") or 0) == 2 for job in jobs))
    first.send(signal.SIGCONT)
    assert_undisturbed(queue, jobs, 150)
    eventually(lambda: "belongs to another worker" in first.log)
    eventually(lambda: (info := first.info()) is not None and info.stats.jobs == 0)
    assert second.process.poll() is None


def test_sigterm_lets_jobs_finish_within_the_grace_period(queue: Queue, start_worker):
    worker = start_worker(SLOW, grace=20).wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(100))
    eventually(lambda: queue.stored(job) > 5)
    worker.send(signal.SIGTERM)
    eventually(lambda: "leaving" in worker.log)
    late = queue.submit(PROMPT, sampling=sampling(5))
    assert worker.wait() == 0
    assert list(queue.wait(job).token_ids) == expected(list(PROMPT), 100)
    assert queue.status(late) is JobStatus.QUEUED
    assert worker.info() is None


@pytest.mark.parametrize("how", ["grace is over", "second signal"])
def test_sigterm_hands_back_what_does_not_finish(queue: Queue, start_worker, how):
    worker = start_worker(SLOW, lease=10.0, grace=0.2 if how == "grace is over" else 3600).wait_ready()
    jobs = submit_many(queue, 6, 300)
    eventually(lambda: all(queue.stored(job) > 5 for job in jobs))
    worker.send(signal.SIGTERM)
    if how == "second signal":
        eventually(lambda: "leaving" in worker.log)
        worker.send(signal.SIGINT)
    assert worker.wait() == 0
    assert {queue.status(job) for job in jobs} == {JobStatus.QUEUED}
    start_worker(lease=10.0)
    assert_undisturbed(queue, jobs, 300)
    assert {crashes(queue, job) for job in jobs} == {0}


def test_cancel_and_deadline_wherever_the_job_is(queue: Queue, start_worker):
    queued = queue.submit(PROMPT, sampling=sampling(50))
    assert run_sync(queue.connection, queue.cell.cancel(queued)) is JobStatus.CANCELLED
    late = queue.submit(PROMPT, sampling=sampling(50), queue_timeout_s=0.01)
    worker = start_worker("step_seconds=0.02").wait_ready()
    running = queue.submit(PROMPT, sampling=sampling(900))
    overdue = queue.submit(PROMPT, sampling=sampling(900), timeout_s=1.0)
    eventually(lambda: queue.stored(running) > 3 and queue.stored(overdue) > 3)
    run_sync(queue.connection, queue.cell.cancel(running))
    for job, status in ((queued, "cancelled"), (late, "expired"), (running, "cancelled"), (overdue, "expired")):
        result = queue.wait(job)
        assert result.status == status
        assert list(result.token_ids) == expected(list(PROMPT), len(result.token_ids))
        assert result.usage.completion_tokens == len(result.token_ids) < 900
    eventually(lambda: (info := worker.info()) is not None and (info.stats.running, info.stats.jobs) == (0, 0))


def test_cancel_between_two_owners(queue: Queue, start_worker):
    worker = start_worker(SLOW, grace=0).wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(900))
    eventually(lambda: queue.stored(job) > 3)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert run_sync(queue.connection, queue.cell.cancel(job)) is JobStatus.CANCELLED
    result = queue.wait(job)
    assert list(result.token_ids) == expected(list(PROMPT), len(result.token_ids))


@pytest.mark.full
def test_server_killed_and_restarted_in_mid_run(tmp_path: Path, start_worker):
    with killable_server(tmp_path) as server, redis.Redis.from_url(server.url) as connection:
        queue = known_queue(connection)
        workers = [start_worker(SLOW, url=server.url, lease=2.0).wait_ready() for _ in range(2)]
        jobs = submit_many(queue, 16, 250)
        eventually(lambda: all(queue.stored(job) > 10 for job in jobs))
        server.kill()
        time.sleep(2.5)  # longer than the lease
        server.start()
        assert_undisturbed(queue, jobs, 250)
        assert {crashes(queue, job) for job in jobs} == {0}, "an outage of the server is nobody's crash"
        assert all(worker.process.poll() is None for worker in workers)


@pytest.mark.full
async def test_server_that_forgets_its_last_second(tmp_path: Path, start_worker):
    """Also jobs that were accepted in it, and ends that were told; readers notice nothing of it."""
    with killable_server(tmp_path) as server, redis.Redis.from_url(server.url) as connection:
        queue = known_queue(connection)
        workers = [start_worker(SLOW, url=server.url).wait_ready() for _ in range(2)]
        async with AsyncClient(server.url) as client:

            async def submit(count: int, max_tokens: int) -> list[tuple[AsyncJob, asyncio.Task[list[int]], list[int]]]:
                """Jobs, what their readers hear, and what they should."""
                jobs = []
                for number in range(count):
                    fields = {"seed": number, "max_tokens": max_tokens, "ignore_eos": True, "follow": number % 2 == 0}
                    job = await client.submit([10 + number, 5, 6], model=MODEL, **fields)
                    wanted = expected([10 + number, 5, 6], max_tokens, seed=number)
                    jobs.append((job, asyncio.create_task(heard(job)), wanted))
                return jobs

            jobs = await submit(8, 250) + await submit(4, 50)
            await until(lambda: all(queue.stored(job.id) > 10 for job, *_ in jobs))
            with forgotten_by(server, tmp_path):
                jobs += await submit(6, 200)
                await until(lambda: all(queue.stored(job.id) > 40 for job, *_ in jobs))
                await asyncio.gather(*(reader for _, reader, _ in jobs[8:12]))  # those have ended
            for job, reader, wanted in jobs:
                assert await asyncio.wait_for(reader, STALL_S) == wanted
                assert list((await job.result(timeout=STALL_S)).token_ids) == wanted
        eventually(lambda: [worker.info().stats.running for worker in workers] == [0, 0])


async def test_server_that_forgets_everything_hears_of_models_and_jobs_again(tmp_path: Path, start_worker):
    with killable_server(tmp_path) as server:
        async with AsyncClient(server.url) as client:
            with forgotten_by(server, tmp_path):
                worker = start_worker(SLOW, url=server.url).wait_ready()
                job = await client.submit(list(PROMPT), model=MODEL, seed=1, max_tokens=60, ignore_eos=True)
            assert await asyncio.wait_for(heard(job), STALL_S) == expected(list(PROMPT), 60)
            assert [card.name for card in await client.models()] == [MODEL]
            assert "has forgotten the model demo" in worker.log


async def heard(job: AsyncJob) -> list[int]:
    return [token async for event in job.stream() for token in event.token_ids]


@pytest.mark.full
def test_tokens_that_the_server_lost_are_sent_again(queue: Queue, start_worker):
    start_worker(SLOW).wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(200, n=2))
    eventually(lambda: queue.stored(job) > 50)
    with queue.connection.pipeline(transaction=True) as lose_all:
        lose_all.delete(queue.cell.keys.stream(job)).hset(queue.cell.keys.job(job), "n", 0)
        lose_all.execute()
    result = queue.wait(job)
    wanted = [expected(list(PROMPT), 200, index=index) for index in range(2)]
    assert [list(sequence.token_ids) for sequence in result.sequences] == wanted


@pytest.mark.full
def test_poison_is_quarantined_and_dead_lettered_while_innocents_finish(queue: Queue, start_worker):
    poison = queue.submit((666, 1, 2), sampling=sampling(50))
    jobs = submit_many(queue, 5, 40)
    worker = start_worker("step_seconds=0.01,crash_token=666", lease=10.0)
    assert_undisturbed(queue, jobs, 40)
    result = queue.wait(poison)
    assert result.status is JobStatus.FAILED
    assert result.error is not None
    assert result.error.code == "dead_lettered"
    assert int(queue.field(poison, "solo") or 0) == 3
    assert worker.process.poll() is None, "a poison job must not end the worker"


@pytest.mark.full
def test_a_search_whose_engines_are_killed_is_never_given_up(queue: Queue, start_worker):
    """It stores nothing before its end."""
    worker = start_worker(SLOW).wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(300, beam_width=2))
    for attempt in range(1, 5):
        eventually(lambda attempt=attempt: int(queue.field(job, "ep") or 0) == attempt and serves(worker))
        os.kill(worker.engine_pid, signal.SIGKILL)
    assert queue.wait(job).status is JobStatus.COMPLETED


@pytest.mark.full
def test_what_a_paused_worker_had_is_never_given_up(queue: Queue, start_worker):
    workers = [start_worker(SLOW).wait_ready() for _ in range(2)]
    job = queue.submit(PROMPT, sampling=sampling(200, best_of=2))

    def has_lost(worker_id: str) -> bool:
        status, owner = queue.fields([job], "st", "wid")[0]
        return status == "queued" or owner != worker_id

    for attempt in range(1, 5):
        eventually(lambda attempt=attempt: int(queue.field(job, "ep") or 0) == attempt)
        owner = next(worker for worker in workers if worker.id == queue.field(job, "wid"))
        owner.send(signal.SIGSTOP)
        eventually(partial(has_lost, owner.id))
        owner.send(signal.SIGCONT)
    assert queue.wait(job).status is JobStatus.COMPLETED


def serves(worker: WorkerProcess) -> bool:
    return worker.engine_pid > 0 and Path(f"/proc/{worker.engine_pid}").exists()


def test_no_spoiled_request_ends_a_worker(queue: Queue, start_worker):
    jobs = {what: queue.submit(PROMPT, sampling=sampling(5)) for what in RUBBISH}
    innocent = queue.submit(PROMPT, sampling=sampling(40))
    for what, job in jobs.items():
        queue.connection.hset(queue.cell.keys.job(job), "body", RUBBISH[what])
    worker = start_worker()
    assert list(queue.wait(innocent).token_ids) == expected(list(PROMPT), 40)
    assert {what: queue.wait(job).error.code for what, job in jobs.items()} == dict.fromkeys(jobs, "malformed_message")
    queue.connection.rpush(queue.cell.keys.inbox(worker.id), b"\xff")
    queue.connection.hset(queue.cell.keys.pins(MODEL), b"\xff", b"\xff")
    with Client(queue_url(queue)) as client:
        assert client.worker_memory(worker.id).worker == worker.id
    assert worker.process.poll() is None


def queue_url(queue: Queue) -> str:
    options = queue.connection.connection_pool.connection_kwargs
    return f"redis://{options['host']}:{options['port']}/{options.get('db', 0)}"


@pytest.mark.full
def test_hung_engine_is_killed_by_the_watchdog(queue: Queue, start_worker):
    worker = start_worker(SLOW, watchdog=0.5).wait_ready()
    job = queue.submit(PROMPT, sampling=sampling(100))
    eventually(lambda: queue.stored(job) > 5)
    os.kill(worker.engine_pid, signal.SIGSTOP)
    assert list(queue.wait(job).token_ids) == expected(list(PROMPT), 100)
    assert "killing it" in worker.log


def test_worker_waits_for_a_server_that_is_not_there_yet(tmp_path: Path, start_worker):
    with EmbeddedServer(data_dir=tmp_path / "data") as server:
        url = server.url
        server.stop()
        worker = start_worker(url=url.replace("redis://", "redis://:hunter2@"))
        eventually(lambda: "cannot reach the Redis server at redis://***@127.0.0.1" in worker.log)
        assert "hunter2" not in worker.log
        assert worker.process.poll() is None


@pytest.mark.full
def test_worker_waits_for_a_server_that_still_loads(tmp_path: Path, start_worker):
    with loading_server(tmp_path / "data") as url:
        worker = start_worker(url=url)
        eventually(lambda: "still loading" in worker.log)
        assert worker.process.poll() is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [({"model": "/no/such/model"}, "no folder /no/such/model"), ({"model": "."}, "has no config.json")],
)
def test_model_that_is_not_there_ends_the_worker_with_one_clear_message(start_worker, flags, says):
    worker = start_worker(**flags)
    assert worker.wait() == 1
    assert says in worker.log
    assert "Traceback" not in worker.log


@pytest.mark.full
def test_engine_that_cannot_load_is_not_started_again_however_slowly_it_exits(queue: Queue, start_worker):
    worker = start_worker("refuse=600")
    assert worker.wait() == 1
    assert "refuses as it was told to" in worker.log.splitlines()[-1]
    assert "starting it again" not in worker.log


def test_engine_that_cannot_load_ends_the_worker_with_its_last_words(queue: Queue, start_worker):
    worker = start_worker("vocab_size=none")
    assert worker.wait() == 1
    assert "the engine did not start: ValueError" in worker.log


NOWHERE = "redis://127.0.0.1:1"


def test_a_refused_model_ends_the_worker_with_one_sentence_where_no_server_is(tmp_path):
    BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4).save_pretrained(tmp_path)
    flags = {"model": tmp_path, "device": "cpu", "max_model_len": 64}
    with WorkerProcess(NOWHERE, tmp_path / "log", own_start=True, **flags) as worker:
        assert worker.wait() == 1
        said = [line for line in worker.log.splitlines() if "cannot reach the Redis server" not in line]
    assert len(said) == 1, worker.log
    assert said[0].startswith("octavo worker: BloomForCausalLM called transformers' attention interface for 0 of 1 ")
    assert "SIGKILL" not in worker.log
