"""Other names of models: whose they are is decided by one script, and they die with the last worker that says them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from octavo import AsyncClient
from octavo.queue import wire
from octavo.queue.calls import run_sync
from octavo.queue.fleet import models_of
from octavo.terms.errors import NameTaken, UnknownModel
from octavo.terms.workers import ModelCard, WorkerInfo

LEASE_MS = 60_000


def register(world: Any, worker: str, model: str, *aliases: str, connection: Any = None) -> None:
    info = WorkerInfo(id=worker, model=model, host="h", pid=1, started_at=1.0)
    card = ModelCard(name=model, max_model_len=512, vocab_size=256, has_tokenizer=True, created_at=1.0, aliases=aliases)
    call = world.cell.register_model(card, worker_id=worker, lease_ms=LEASE_MS, info=wire.encode_worker(info))
    run_sync(connection or world.redis, call)


def die(world: Any, worker: str) -> None:
    """As its heartbeat does when it is not renewed."""
    world.redis.delete(world.keys.worker(worker))


def accepted_for(world: Any, request: Any) -> str:
    return str(world.state(world.enqueue(request))["mdl"])


async def test_a_job_waits_for_the_model_and_answers_with_the_name_it_asked_for(
    world: Any, request_of: Any, redis_url: str
) -> None:
    register(world, "w1", "toy", "gpt-4o", "openai/gpt-4o")
    request = request_of(model="gpt-4o")
    job_id = world.enqueue(request)
    assert (world.state(job_id)["mdl"], world.state(job_id)["as"]) == ("toy", "gpt-4o")
    assert "as" not in world.state(world.enqueue())
    claim = world.claim_one()
    assert (claim.job_id, claim.request) == (job_id, request)
    async with AsyncClient(redis_url) as client:
        assert (await client.info(job_id)).model == "gpt-4o"
        assert sorted(job.model for job in await client.jobs()) == ["gpt-4o", "toy"]  # both of one millisecond
        (card,) = [card for card in await client.models() if card.name == "toy"]
        assert card.aliases == ("gpt-4o", "openai/gpt-4o")
        job = await client.submit("a", model="gpt-4o")
        assert job.accepted is not None
        assert job.accepted.model == "gpt-4o"
        pin = await client.pin_prefix("p", model="gpt-4o", system="You are")
        assert pin.model == "toy"
        assert [pinned.pin for pinned in await client.pins("gpt-4o")] == [pin]
        assert await client.unpin_prefix("p", model="gpt-4o")


def test_the_card_that_clients_of_before_read_is_as_it_was(world: Any) -> None:
    register(world, "w1", "toy", "gpt-4o")
    (frame,) = world.redis.hvals(world.keys.models)
    assert b"aliases" not in frame
    assert b"sampling" not in frame
    assert wire.decode_model(frame).aliases == ()


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (("a", "x"), ("b", "x"), "'x' is a name of the model 'a'"),
        (("a", "x"), ("b", "y", "x"), "'x' is a name of the model 'a'"),
        (("a", "x"), ("x",), "'x' is a name of the model 'a'"),
        (("a",), ("b", "a"), "'a' has workers"),
    ],
)
def test_one_name_of_two_models_is_refused_at_the_second_worker(
    world: Any, first: tuple[str, ...], second: tuple[str, ...], said: str
) -> None:
    register(world, "w1", *first)
    before = {name: world.redis.dump(name) for name in world.redis.scan_iter()}
    with pytest.raises(NameTaken, match=said) as refused:
        register(world, "w2", *second)
    assert "other names" in refused.value.message
    assert {name: world.redis.dump(name) for name in world.redis.scan_iter()} == before
    die(world, "w1")
    register(world, "w2", *second)


def test_a_worker_of_a_version_before_has_its_name(world: Any) -> None:
    """It says in its heartbeat alone what it serves."""
    world.know("old")
    info = wire.encode_worker(WorkerInfo(id="w0", model="old", host="h", pid=1, started_at=1.0))
    world.run(world.cell.heartbeat("w0", [], lease_ms=LEASE_MS, info=info))
    with pytest.raises(NameTaken, match="'old' has workers"):
        register(world, "w1", "new", "old")
    world.redis.set(world.keys.worker("w0"), b"\xc1 no frame")
    register(world, "w1", "new", "old")


def test_of_many_that_come_at_once_one_gets_the_name(world: Any, redis_url: str) -> None:
    def come(number: int) -> bool:
        with redis.Redis.from_url(redis_url) as own:
            try:
                register(world, f"w{number}", f"model{number}", "wanted", connection=own)
            except NameTaken:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(come, range(24)))
    assert won.count(True) == 1
    assert world.redis.hget(world.keys.aliases, "wanted").split()[0] == f"model{won.index(True)}".encode()


async def test_an_alias_dies_with_the_last_worker_that_announces_it(world: Any, request_of: Any) -> None:
    register(world, "w1", "toy", "x")
    register(world, "w2", "toy", "x", "y")
    register(world, "w3", "toy")
    for gone, left in (("w2", ["x"]), ("w1", [])):  # the one that came first has said it, too
        die(world, gone)
        for alias in left:
            assert accepted_for(world, request_of(model=alias)) == "toy"
    for alias in ("x", "y"):
        with pytest.raises(UnknownModel, match="no worker has ever served"):
            world.enqueue(request_of(model=alias))
    assert accepted_for(world, request_of()) == "toy"
    register(world, "w4", "toy")
    assert world.redis.exists(world.keys.aliases) == 0


async def test_it_is_not_shown_any_more_then(world: Any, redis_url: str) -> None:
    register(world, "w1", "toy", "x")
    async with AsyncClient(redis_url) as client:
        assert (await client.models())[0].names == ("toy", "x")
        assert await models_of(client._redis, world.keys, ["x", "z", "toy"]) == ["toy", "z", "toy"]
        die(world, "w1")
        assert (await client.models())[0].names == ("toy",)
        assert await models_of(client._redis, world.keys, ["x", "z"]) == ["x", "z"]


def test_a_name_that_a_model_had_may_become_an_alias(world: Any, request_of: Any) -> None:
    world.know("gpt-4o")
    register(world, "w1", "toy", "gpt-4o")
    assert accepted_for(world, request_of(model="gpt-4o")) == "toy"
    die(world, "w1")
    assert accepted_for(world, request_of(model="gpt-4o")) == "gpt-4o"


def test_an_unknown_model_is_told_the_aliases_too(world: Any, request_of: Any) -> None:
    register(world, "w1", "toy", "x")
    with pytest.raises(UnknownModel, match="known models: toy, x"):
        world.enqueue(request_of(model="absent"))


def test_a_job_that_the_server_forgot_goes_to_the_model_of_before(world: Any, request_of: Any) -> None:
    """Its readers have tokens of that one."""
    register(world, "w1", "toy", "x")
    call = world.enqueue_call(request_of(model="x"))
    reply = world.run(call)
    assert reply.model == "toy"
    kept = world.cell.settled(call, reply)
    world.redis.flushdb()
    world.know("toy")
    register(world, "w2", "another", "x")
    again = world.run(world.cell.enqueue_again(kept))
    assert again.model == "toy"
    assert (world.state(reply.job_id)["mdl"], world.state(reply.job_id)["as"]) == ("toy", "x")
    plain = world.enqueue_call()
    assert world.cell.settled(plain, world.run(plain)) is plain


def test_a_key_that_names_a_job_holds_for_the_name_that_was_asked_for(world: Any, request_of: Any) -> None:
    register(world, "w1", "toy", "x")
    first = world.run(world.enqueue_call(request_of(model="x"), key="k"))
    again = world.run(world.enqueue_call(request_of(model="x"), key="k"))
    assert (again.created, again.job_id) == (False, first.job_id)


@pytest.mark.parametrize("rubbish", [b"", b" ", b"toy", b"\xff\xfe", b"toy nobody"])
async def test_rubbish_in_place_of_an_alias_names_nothing(
    world: Any, request_of: Any, redis_url: str, rubbish: bytes
) -> None:
    world.redis.hset(world.keys.aliases, "x", rubbish)
    with pytest.raises(UnknownModel):
        world.enqueue(request_of(model="x"))
    async with AsyncClient(redis_url) as client:
        assert [card.names for card in await client.models()] == [("toy",)]
    register(world, "w1", "toy", "x")
    assert accepted_for(world, request_of(model="x")) == "toy"


@pytest.mark.parametrize("name", ["aliases", "traits"])
def test_a_key_of_another_kind_is_mended(world: Any, name: str) -> None:
    world.redis.set(getattr(world.keys, name), "a stranger's")
    register(world, "w1", "toy", "x")
    assert world.redis.type(getattr(world.keys, name)) == b"hash"
