"""The Celery task with a real Celery worker that has one single slot."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import fake_worker as fake
import pytest
from waiting import STALL_S

from octavo import Client, JobFailed, JobRequest
from octavo.connection import connect
from octavo.server import EmbeddedServer, die_with_parent

celery = pytest.importorskip("celery")


def serve(url: str, ready: threading.Event, stop: threading.Event) -> None:
    async def main() -> None:
        async with connect(url) as connection, fake.fake_worker(connection, delay=0.05):
            ready.set()
            await asyncio.to_thread(stop.wait)

    asyncio.run(main())


@pytest.fixture(scope="module")
def app() -> Iterator[ModuleType]:
    """The application, its Celery worker (prefork, one slot) and a slow octavo worker."""
    with EmbeddedServer() as server:
        os.environ["TEST_REDIS"] = server.url.removesuffix("/0")
        ready, stop = threading.Event(), threading.Event()
        thread = threading.Thread(target=serve, args=(server.url, ready, stop))
        thread.start()
        ready.wait(STALL_S)
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "celery_app",
            "worker",
            "--concurrency=1",
            "--loglevel=WARNING",
        ]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        worker = subprocess.Popen(
            [*command, "--loglevel=WARNING", "--without-gossip", "--without-mingle"],
            env={**os.environ, "PYTHONPATH": path},
            preexec_fn=die_with_parent(),
        )
        try:
            yield importlib.import_module("celery_app")
        finally:
            worker.terminate()
            worker.wait(STALL_S)
            stop.set()
            thread.join()
            del os.environ["TEST_REDIS"]


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


def test_eagerly_it_simply_waits(app: ModuleType, generate: Any) -> None:
    result = generate.apply(("a",), {"model": "toy", "max_tokens": 3, "seed": 9})
    assert result.get()["token_ids"] == reference("a", 9, 3)
    assert result.state == "SUCCESS"


def test_called_as_a_function_it_waits_and_each_call_is_a_job(app: ModuleType, generate: Any) -> None:
    first, second = (generate("a", model="toy", max_tokens=3, seed=9) for _ in range(2))
    assert first["token_ids"] == second["token_ids"] == reference("a", 9, 3)
    assert first["job_id"] != second["job_id"]


def test_a_job_of_days_is_looked_at_every_few_seconds(generate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
