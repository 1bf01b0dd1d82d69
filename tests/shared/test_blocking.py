"""The synchronous client: the same behaviour from threads, and across a fork."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import fake_worker as fake
import pytest
from waiting import STALL_S

from octavo import Client, JobFailed, JobRequest, JobStatus, UnknownModel
from octavo.queue.connection import connect


def serve(url: str, ready: threading.Event, stop: threading.Event) -> None:
    async def main() -> None:
        async with connect(url) as connection, fake.fake_worker(connection):
            ready.set()
            await asyncio.to_thread(stop.wait)

    asyncio.run(main())


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    ready, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, args=(redis_url, ready, stop))
    thread.start()
    ready.wait(STALL_S)
    with Client(redis_url) as opened:
        yield opened
    stop.set()
    thread.join()


def test_submit_stream_result(client: Client) -> None:
    job = client.submit("hi", model="toy", max_tokens=10, seed=2)
    events = list(job.stream())
    assert [event.offset for event in events] == list(range(1, 11))
    assert job.result(timeout=STALL_S).text == "".join(event.text for event in events)
    assert list(job.stream(after=7)) == events[7:]
    assert client.job(job.id).info().status == JobStatus.COMPLETED
    assert [info.id for info in client.jobs()] == [job.id]
    assert [worker.id for worker in client.workers()] == ["fake"]
    assert [card.name for card in client.models()] == ["toy"]
    assert client.queue_depths() == {"toy": 0}


def test_submit_many_and_errors(client: Client) -> None:
    good, bad = client.submit_many([JobRequest(model=name, prompt="a") for name in ("toy", "nope")])
    assert good.result(timeout=STALL_S).status == JobStatus.COMPLETED
    assert isinstance(bad, UnknownModel)
    job = client.submit("fail 1", model="toy")
    with pytest.raises(JobFailed):
        list(job.stream())
    assert client.result(job.id).status == JobStatus.FAILED


def test_a_stream_may_be_left_early_and_cancelled(client: Client) -> None:
    job = client.submit("hi", model="toy", max_tokens=100_000)
    for _ in job.stream():
        break
    assert job.cancel() == JobStatus.RUNNING
    assert client.result(job.id, timeout=STALL_S).status == JobStatus.CANCELLED
    assert [event.end.status for event in job.events() if event.end] == [JobStatus.CANCELLED]


def test_threads_share_one_client(client: Client) -> None:
    results: dict[int, Any] = {}

    def work(i: int) -> None:
        results[i] = client.submit("same", model="toy", max_tokens=8, seed=i).result(timeout=STALL_S).token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    request = JobRequest(model="toy", prompt="same")
    assert results == {i: tuple(fake.token_of(request, i, k) for k in range(8)) for i in range(8)}


def in_child(client: Client, answers: Any) -> None:
    answers.put(client.submit("child", model="toy", max_tokens=4).result(timeout=STALL_S).status)


def test_a_forked_child_gets_connections_of_its_own(client: Client) -> None:
    job = client.submit("parent", model="toy", max_tokens=60)
    stream = job.stream()
    first = next(stream)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=in_child, args=(client, answers))
    child.start()
    assert answers.get(timeout=STALL_S) == JobStatus.COMPLETED
    child.join(STALL_S)
    assert child.exitcode == 0
    assert [first.offset, *(event.offset for event in stream)] == list(range(1, 61))


def test_a_closed_client_connects_again(client: Client) -> None:
    client.close()
    client.close()
    assert client.models()


def test_a_stream_may_be_dropped_anywhere(client: Client) -> None:
    """By the loop's own thread, as the garbage collector does, or by closing the client: no caller waits for ever."""
    dropped, late = (client.submit("a", model="toy", max_tokens=100_000).stream() for _ in range(2))
    next(dropped), next(late)
    engine = client._ready()
    engine._loop.call_soon_threadsafe(dropped.close)
    assert client.models()
    client.close()
    late.close()


def test_a_client_that_is_dropped_leaves_no_thread(client: Client, redis_url: str) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "octavo-client"]

    before = set(threads())
    stream = Client(redis_url).submit("a", model="toy", max_tokens=5).stream()  # which keeps its client
    assert len(list(stream)) == 5
    del stream
    gc.collect()
    for thread in set(threads()) - before:
        thread.join(STALL_S)
    assert set(threads()) <= before
