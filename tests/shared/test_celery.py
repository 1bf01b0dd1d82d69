"""The Celery task with a real Celery worker that has one single slot."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import fake_worker as fake
import pytest
import redis
from waiting import STALL_S, eventually

from octavo import Client, InvalidRequest, JobFailed, JobRequest
from octavo.queue.connection import connect
from octavo.service.server import EmbeddedServer, die_with_parent
from octavo.service.waiting_tasks import WaitingTasks
from octavo.terms.messages import JobStatus

celery = pytest.importorskip("celery")


def serve(url: str, ready: threading.Event, stop: threading.Event) -> None:
    async def main() -> None:
        async with connect(url) as connection, fake.fake_worker(connection, delay=0.05):
            ready.set()
            await asyncio.to_thread(stop.wait)

    asyncio.run(main())


def start_celery_worker(*options: str) -> subprocess.Popen[bytes]:
    """Prefork, one slot."""
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--concurrency=1", "--loglevel=WARNING"]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [*command, "--without-gossip", "--without-mingle", *options],
        env={**os.environ, "PYTHONPATH": path},
        preexec_fn=die_with_parent(),
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def app() -> Iterator[ModuleType]:
    """The application, its Celery worker and a slow octavo worker."""
    with EmbeddedServer() as server:
        os.environ["TEST_REDIS"] = server.url.removesuffix("/0")
        ready, stop = threading.Event(), threading.Event()
        thread = threading.Thread(target=serve, args=(server.url, ready, stop))
        thread.start()
        ready.wait(STALL_S)
        worker = start_celery_worker()
        try:
            yield importlib.import_module("celery_app")
        finally:
            worker.terminate()
            worker.wait(STALL_S)
            stop.set()
            thread.join()
            del os.environ["TEST_REDIS"]


@pytest.fixture
def broker(app: ModuleType) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(app.app.conf.broker_url) as connection:
        yield connection


@pytest.fixture
def doomed(app: ModuleType) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts Celery workers of a queue of that name, which are killed at the end, if not before."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(start_celery_worker("--queues=doomed", f"--hostname=doomed{len(started)}@%h"))
        return started[-1]

    yield start
    for worker in started:
        kill(worker)


def kill(worker: subprocess.Popen[bytes]) -> None:
    """With its pool."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait(STALL_S)


@pytest.fixture
def generate(app: ModuleType) -> Any:
    return importlib.import_module("octavo.celery").generate


@pytest.fixture
def client(app: ModuleType) -> Iterator[Client]:
    with Client(app.app.conf.octavo_url) as opened:
        yield opened


def reference(prompt: str, seed: int, count: int) -> list[int]:
    request = JobRequest(model="toy", prompt=prompt)
    return [fake.token_of(request, seed, i) for i in range(count)]


def test_three_jobs_run_at_once_through_one_slot(app: ModuleType, generate: Any, client: Client) -> None:
    group = celery.group(generate.s(f"p{i}", model="toy", max_tokens=40, seed=i) for i in range(3))
    results = group.apply_async().get(timeout=STALL_S)
    assert [result["token_ids"] for result in results] == [reference(f"p{i}", i, 40) for i in range(3)]
    assert [result["finish_reason"] for result in results] == ["length"] * 3
    assert [result["usage"]["completion_tokens"] for result in results] == [40] * 3
    infos = [client.info(result["job_id"]) for result in results]
    assert max(info.started_at or 0 for info in infos) < min(info.finished_at or 0 for info in infos)


def test_a_chord_collects_and_a_chain_continues(app: ModuleType, generate: Any) -> None:
    header = [generate.s("a", model="toy", max_tokens=n, seed=1) for n in (1, 2, 3)]
    chord = celery.chord(header)(app.lengths.s())
    chain = (generate.s("b", model="toy", max_tokens=2, seed=2) | generate.s(model="toy", max_tokens=3, seed=3)).delay()
    assert chord.get(timeout=STALL_S) == [1, 2, 3]
    first = "".join(fake.text_of(token) for token in reference("b", 2, 2))
    assert chain.get(timeout=STALL_S)["token_ids"] == reference(first, 3, 3)


def test_a_task_that_is_delivered_twice_is_one_job(app: ModuleType, generate: Any, client: Client) -> None:
    before = {info.id for info in client.jobs()}
    for _ in range(2):
        again = generate.apply_async(("twice",), {"model": "toy", "max_tokens": 2}, task_id="one-and-the-same")
    result = again.get(timeout=STALL_S)
    assert {info.id for info in client.jobs()} - before == {result["job_id"]}


def test_a_failed_job_raises_what_the_client_would(app: ModuleType, generate: Any) -> None:
    with pytest.raises(JobFailed, match="it broke") as caught:
        generate.delay("fail 1", model="toy").get(timeout=STALL_S)
    assert (caught.value.status, caught.value.code) == ("failed", "engine_error")
    with pytest.raises(Exception, match="no worker has ever served"):
        generate.delay("a", model="nope").get(timeout=STALL_S)


def test_arguments_survive_json(app: ModuleType, generate: Any, client: Client) -> None:
    fields = {"logit_bias": {5: 1.5}, "stop": ["x"], "metadata": {"k": "v"}, "max_tokens": 1}
    result = generate.delay([1, 2, 3], model="toy", **fields).get(timeout=STALL_S)
    assert client.info(result["job_id"]).metadata == {"k": "v"}


def test_a_task_may_ask_for_a_form(app: ModuleType, generate: Any) -> None:
    for form in ({"json_schema": {"type": "object"}}, {"choice": ["a", "b"]}, {"grammar": {"kind": "json_object"}}):
        assert generate.delay("a", model="toy", max_tokens=2, **form).get(timeout=STALL_S)["finish_reason"] == "length"
    with pytest.raises(InvalidRequest, match="give one of regex, choice"):
        generate.delay("a", model="toy", regex="a", choice=["b"]).get(timeout=STALL_S)


def test_eagerly_it_simply_waits(app: ModuleType, generate: Any) -> None:
    result = generate.apply(("a",), {"model": "toy", "max_tokens": 3, "seed": 9})
    assert result.get()["token_ids"] == reference("a", 9, 3)
    assert result.state == "SUCCESS"


def test_called_as_a_function_it_waits_and_each_call_is_a_job(app: ModuleType, generate: Any) -> None:
    first, second = (generate("a", model="toy", max_tokens=3, seed=9) for _ in range(2))
    assert first["token_ids"] == second["token_ids"] == reference("a", 9, 3)
    assert first["job_id"] != second["job_id"]


@pytest.fixture
def running(app: ModuleType, generate: Any, client: Client) -> Callable[..., tuple[Any, str]]:
    """A task whose job runs, and the job's id."""

    def start(**options: Any) -> tuple[Any, str]:
        known = {info.id for info in client.jobs()}
        task = generate.apply_async(("long",), {"model": "toy", "max_tokens": 100_000}, **options)

        def job() -> str | None:
            news = [info for info in client.jobs(status=JobStatus.RUNNING) if info.id not in known]
            return news[0].id if news else None

        return task, eventually(job)

    return start


def has_ended(client: Client, job_id: str, status: JobStatus) -> bool:
    return client.info(job_id).status is status


def test_a_task_that_waits_costs_no_message(running: Any, broker: redis.Redis, client: Client) -> None:
    task, job_id = running()
    eventually(lambda: not broker.hlen("unacked"))
    tokens = client.info(job_id).tokens
    for seen in range(1, 6):
        eventually(lambda seen=seen: client.info(job_id).tokens > tokens + 8 * seen)
        assert (broker.llen("celery"), broker.hlen("unacked")) == (0, 0)
    client.cancel(job_id)
    with pytest.raises(JobFailed, match="cancelled"):
        task.get(timeout=STALL_S)


@pytest.mark.parametrize("terminate", [False, True])
def test_a_revoked_task_cancels_its_job(running: Any, client: Client, terminate: bool) -> None:
    task, job_id = running()
    task.revoke(terminate=terminate)
    eventually(lambda: has_ended(client, job_id, JobStatus.CANCELLED))
    with pytest.raises(celery.exceptions.TaskRevokedError):
        task.get(timeout=STALL_S)


@pytest.mark.full
def test_a_task_that_expires_cancels_its_job(running: Any, client: Client) -> None:
    task, job_id = running(expires=12)
    eventually(lambda: has_ended(client, job_id, JobStatus.CANCELLED))
    with pytest.raises(celery.exceptions.TaskRevokedError):
        task.get(timeout=STALL_S)


@pytest.mark.full
def test_a_chord_outlives_its_celery_worker(app: ModuleType, generate: Any, client: Client, doomed: Any) -> None:
    """Whatever that had in its hands: here jobs that run and messages that it had fetched."""
    worker = doomed()
    counts = range(20, 28)
    header = [generate.s("kill", model="toy", max_tokens=n, seed=n).set(queue="doomed") for n in counts]
    known = {info.id for info in client.jobs()}
    chord = celery.chord(header)(app.lengths.s())
    eventually(lambda: {info.id for info in client.jobs()} - known)
    kill(worker)
    doomed()
    assert chord.get(timeout=STALL_S) == list(counts)


def test_a_message_that_is_lost_is_sent_again(generate: Any, broker: redis.Redis, doomed: Any) -> None:
    """A transport that takes a message off its list before it keeps it elsewhere loses it with its process."""
    task = generate.apply_async(("lost",), {"model": "toy", "max_tokens": 2, "seed": 5}, queue="doomed")
    assert broker.delete("doomed") == 1
    doomed()
    assert task.get(timeout=STALL_S)["token_ids"] == reference("lost", 5, 2)


@pytest.mark.full
def test_a_wake_up_that_is_lost_is_sent_again(running: Any, client: Client, broker: redis.Redis, doomed: Any) -> None:
    worker = doomed()
    task, job_id = running(queue="doomed")
    kill(worker)
    client.cancel(job_id)
    eventually(lambda: has_ended(client, job_id, JobStatus.CANCELLED))
    eventually(lambda: broker.delete("doomed"))  # sent by the other worker's watcher
    doomed()
    with pytest.raises(JobFailed, match="cancelled"):
        task.get(timeout=STALL_S)


def test_a_job_that_ends_wakes_its_task(
    app: ModuleType, generate: Any, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the news of its end, long before anything is looked at again."""
    task = generate.apply_async(("told",), {"model": "toy"}, queue="watched")
    message = generate.waiting.message(task.id)
    generate.waiting.drop(task.id)  # the Celery worker looks after those of its tenant
    broker.delete("watched")
    monkeypatch.setitem(app.app.conf, "octavo_tenant", "alone")
    monkeypatch.setitem(app.app.conf, "octavo_recheck_s", 3600)
    watcher = importlib.import_module("octavo.celery").Watcher(app.app)
    watcher.watch()
    alone = WaitingTasks(generate.waiting.connection, "alone", "shop")
    alone.keep(task.id, message, sent=time.time(), due=None)
    with Client(app.app.conf.octavo_url, tenant="alone") as client:
        client.submit("told", model="toy", idempotency_key=f"celery:{task.id}").cancel()
    eventually(lambda: watcher.watch() or broker.llen("watched") == 1)
    assert broker.delete("watched")


def test_one_celery_worker_at_a_time_looks_after_what_was_lost(generate: Any) -> None:
    first, second = (WaitingTasks(generate.waiting.connection, "turns", "shop") for _ in range(2))
    assert first.takes_turn(3600)
    assert not second.takes_turn(3600)
    assert WaitingTasks(generate.waiting.connection, "another tenant", "shop").takes_turn(3600)


def test_nothing_is_kept_of_a_task_that_ended(generate: Any) -> None:
    task = generate.apply_async(("a",), {"model": "toy", "max_tokens": 1}, expires=3600)
    task.get(timeout=STALL_S)
    waiting = generate.waiting
    eventually(lambda: waiting.message(task.id) is None)
    for times in (waiting.keys.tasks_sent(waiting.name), waiting.keys.tasks_due(waiting.name)):
        assert waiting.connection.zscore(times, task.id) is None


def test_a_full_queue_is_tried_again_every_few_seconds(generate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    countdowns = []
    monkeypatch.setattr(
        generate, "retry", lambda exc, countdown: countdowns.append(countdown) or celery.exceptions.Retry()
    )
    for retries in (0, 5, 100_000):
        generate.push_request(retries=retries)
        with pytest.raises(celery.exceptions.Retry):
            generate.look_again()
        generate.pop_request()
    assert countdowns == sorted(countdowns)
    assert countdowns[0] < 1
    assert 1 < countdowns[-1] < 60


ROUTES = {
    "topic": {"queue": "media", "routing_key": "media.text"},
    "topic to two queues": {"queue": "media", "routing_key": "media.video"},
    "fanout": {"queue": "news"},
    "direct": {"queue": "ranked"},
    "priority": {"queue": "ranked", "priority": 7},
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_task_ends_whatever_exchange_it_goes_through(
    app: ModuleType, generate: Any, client: Client, route: str
) -> None:
    prompt = f"through {route}"
    result = generate.apply_async((prompt,), {"model": "toy", "max_tokens": 20, "seed": 1}, **ROUTES[route])
    assert result.get(timeout=STALL_S)["token_ids"] == reference(prompt, 1, 20)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("lost", ["to nowhere", "by a sender that keeps nothing"])
def test_a_task_for_a_topic_is_sent_again(
    app: ModuleType, generate: Any, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Celery itself publishes to an exchange without its queue, or a worker without what its sender declared."""
    module = importlib.import_module("octavo.service.celery")
    options: dict[str, Any] = {"routing_key": "media.text"}
    if lost == "to nowhere":
        options["exchange"] = "files"
    else:
        options["queue"] = "media"
        monkeypatch.setattr(module.WaitingTasks, "keep", lambda *_, **__: None)
    task = generate.apply_async((lost,), {"model": "toy", "max_tokens": 10, "seed": 1}, **options)
    assert task.get(timeout=STALL_S)["token_ids"] == reference(lost, 1, 10)
