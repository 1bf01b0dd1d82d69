"""Pinned prefixes from the outside: asked for in the server, kept by every worker, found by the jobs that begin so."""

from __future__ import annotations

import os
import signal

import pytest
from queue_client import Queue
from waiting import eventually

from octavo import Client, InvalidRequest, UnknownModel
from octavo.terms.workers import PinnedPrefix

SYSTEM = "Thou art a helpful servant of the house of Capulet, and speakest only in rhymes of two lines each, my lord."
SMALL = {"num_blocks": 41}


def sampling(max_tokens: int) -> dict[str, object]:
    return {"max_tokens": max_tokens, "ignore_eos": True}


@pytest.fixture
def client(redis_url):
    with Client(redis_url, tenant="t") as opened:
        yield opened


def settled(client: Client, name: str) -> PinnedPrefix:
    """The pin once all workers have said what they make of it."""

    def found() -> PinnedPrefix:
        return next(pinned for pinned in client.pins("demo") if pinned.pin.name == name)

    eventually(lambda: found().workers and found().is_settled)
    return found()


def flood(queue: Queue) -> None:
    """Enough different prompts to evict whatever can be evicted."""
    for job in [queue.submit(tuple(range(100 + 90 * i, 180 + 90 * i)), sampling=sampling(4)) for i in range(12)]:
        queue.wait(job)


def ask(queue: Queue, said: str, *, tenant: str = "t", system: str = SYSTEM) -> int:
    """Tokens of a chat request that a worker finds."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": said}]
    return queue.wait(queue.submit(None, messages=messages, tenant=tenant, sampling=sampling(2))).usage.cached_tokens


def test_a_pinned_system_message_is_found_by_chat_requests_of_its_tenant(queue: Queue, start_worker, client):
    start_worker(**SMALL).wait_ready()
    client.pin_prefix("servant", model="demo", system=SYSTEM)
    (outcome,) = settled(client, "servant").workers.values()
    assert outcome.state == "pinned"
    assert outcome.tokens >= 16
    for said in ("Hail!", "0", "zounds", "\nwell"):
        flood(queue)
        assert ask(queue, said) >= outcome.tokens
    assert ask(queue, "Hail!", tenant="other") == 0
    client.unpin_prefix("servant", model="demo")
    eventually(lambda: client.worker_memory(client.workers()[0].id).blocks["pinned"] == 0)
    flood(queue)
    assert ask(queue, "Hail!") == 0
    assert client.pins("demo") == []


def test_workers_that_start_later_and_engines_that_start_again_pin_it_too(queue: Queue, start_worker, client):
    client.pin_prefix("beginning", model="demo", prompt=range(2, 50))
    assert [pinned.workers for pinned in client.pins("demo")] == [{}]
    first = start_worker().wait_ready()
    assert [outcome.state for outcome in settled(client, "beginning").workers.values()] == ["pinned"]
    start_worker().wait_ready()
    eventually(lambda: len(settled(client, "beginning").workers) == 2)
    engine = first.engine_pid
    os.kill(engine, signal.SIGKILL)

    def pins_again() -> bool:
        stats = first.info().stats
        return stats.engine_pid not in (0, engine) and stats.pinned_blocks == 3

    eventually(pins_again)
    assert {outcome.tokens for outcome in settled(client, "beginning").workers.values()} == {48}


def test_a_name_pinned_again_moves_on(queue: Queue, start_worker, client):
    worker = start_worker().wait_ready()
    client.pin_prefix("x", model="demo", prompt=range(2, 50))
    settled(client, "x")
    client.pin_prefix("x", model="demo", prompt="To be, or not to be, that is the question: whether 'tis nobler in")
    (outcome,) = settled(client, "x").workers.values()
    assert outcome.state == "pinned"
    assert client.worker_memory(worker.id).blocks["pinned"] == outcome.tokens // 16


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        ({"prompt": range(2, 400)}, "half of the pool"),
        ({"prompt": range(2, 10)}, "less than one block"),
        ({"prompt": [5000] * 20}, "vocabulary"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(queue: Queue, start_worker, client, prefix, says):
    worker = start_worker(**SMALL).wait_ready()
    client.pin_prefix("bad", model="demo", **prefix)
    (outcome,) = settled(client, "bad").workers.values()
    assert outcome.state == "refused"
    assert says in outcome.message
    assert client.worker_memory(worker.id).blocks["pinned"] == 0
    assert list(queue.wait(queue.submit((7, 8), sampling=sampling(3))).token_ids)


def drop(client: Client) -> None:
    client.unpin_prefix("a", model="demo")


def shorten(client: Client) -> None:
    client.pin_prefix("a", model="demo", prompt=range(2, 34))


@pytest.mark.parametrize("free", [drop, shorten])
def test_what_found_no_room_is_pinned_once_there_is_some(queue: Queue, start_worker, client, free):
    start_worker(**SMALL).wait_ready()
    client.pin_prefix("a", model="demo", prompt=range(2, 258))
    settled(client, "a")
    client.pin_prefix("b", model="demo", prompt=range(300, 556))
    assert [outcome.state for outcome in settled(client, "b").workers.values()] == ["refused"]
    free(client)
    eventually(lambda: [outcome.state for outcome in settled(client, "b").workers.values()] == ["pinned"])


def test_requests_that_make_no_sense_are_refused_at_once(queue: Queue, client):
    for fields in ({}, {"system": "a", "prompt": "b"}, {"system": ""}, {"prompt": []}):
        with pytest.raises(InvalidRequest):
            client.pin_prefix("x", model="demo", **fields)
    with pytest.raises(InvalidRequest, match="name"):
        client.pin_prefix("with space", model="demo", system="a")
    with pytest.raises(UnknownModel):
        client.pin_prefix("x", model="nosuch", system="a")
    assert client.unpin_prefix("x", model="demo") is False
