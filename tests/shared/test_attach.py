"""`attach` and `detach`: a subscriber gets one message a call, and the gone are forgotten."""

from __future__ import annotations

from typing import Any

import fake_worker as fake
import pytest
from waiting import STALL_S

from octavo.queue import wire
from octavo.queue.calls import run
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append
from octavo.terms.messages import Chunk, JobStatus

MOST = 256


def test_attached_subscribers_get_one_message_a_call_and_the_gone_are_forgotten(world: Any) -> None:
    ids = [world.enqueue() for _ in range(2)]
    for job_id in ids:
        assert world.run(world.cell.attach(job_id, "here")) == 0
        assert world.run(world.cell.attach(job_id, "here")) == 0
        assert world.run(world.cell.attach(job_id, "gone")) == 0
    pubsub = world.redis.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe(world.keys.channel("here"))
    pubsub.get_message(timeout=STALL_S)
    claims = world.claim(max_jobs=2).jobs
    chunk = Chunk(token_ids=(1,), texts=("é",))
    world.run(world.cell.append([Append(c.job_id, c.token, 0, chunk) for c in claims]))
    message = pubsub.get_message(timeout=STALL_S)["data"]
    assert {row[0].decode() for row in wire.decode_live(message)} == set(ids)
    assert all(wire.decode_entry(payload) == chunk for _, _, payload in wire.decode_live(message))
    assert {world.state(job_id)["gw"] for job_id in ids} == {"here"}
    assert world.run(world.cell.detach(ids[0], "here"))
    assert not world.run(world.cell.detach(ids[0], "here"))
    assert "gw" not in world.state(ids[0])
    world.finish(claims[0], tokens=1)
    world.finish(claims[1], tokens=1)
    ((job_id, entry, payload),) = wire.decode_live(pubsub.get_message(timeout=STALL_S)["data"])
    assert (job_id.decode(), entry) == (ids[1], b"1-1")
    assert wire.decode_entry(payload).status == JobStatus.COMPLETED
    assert pubsub.get_message(timeout=0.05) is None
    assert world.run(world.cell.attach(ids[1], "here")) == 1
    assert "gw" not in world.state(ids[1])
    assert world.run(world.cell.attach("g00_00000000000000000000000000", "here")) is None
    pubsub.close()


def test_a_subscriber_named_at_enqueue_hears_of_the_first_entry(world: Any) -> None:
    with world.redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(world.keys.channel("here"))
        pubsub.get_message(timeout=STALL_S)
        call = world.enqueue_call(subscriber="here", key="k")
        job_id = world.run(call).job_id
        world.run(call)
        assert world.enqueue(subscriber="another", key="k") == job_id
        assert world.state(job_id)["gw"] == "here"
        (claim,) = world.claim().jobs
        world.run(world.cell.append([Append(job_id, claim.token, 0, Chunk(token_ids=(1,), texts=("a",)))]))
        ((heard, entry, _),) = wire.decode_live(pubsub.get_message(timeout=STALL_S)["data"])
    assert (heard.decode(), entry) == (job_id, b"1-0")


def calls_of(world: Any, *commands: str) -> list[int]:
    stats = world.redis.info("commandstats")
    return [stats.get(f"cmdstat_{command}", {"calls": 0})["calls"] for command in commands]


def append_each(world: Any, claims: Any, count: int = 1, start: int = 0) -> None:
    """So many entries of each job, in one call."""
    chunk = Chunk(token_ids=(1,), texts=("a",))
    places = range(start, start + count)
    replies = world.run(world.cell.append([Append(c.job_id, c.token, at, chunk) for c in claims for at in places]))
    assert {reply.state for reply in replies} == {"ok"}


@pytest.mark.parametrize(("followers", "jobs"), [(1500, 1), (200, 16)])
def test_followers_that_died_are_walked_once_whatever_they_follow(world: Any, followers: int, jobs: int) -> None:
    """More of them than may be there by now: clients of before have no limit."""
    ids = [world.enqueue() for _ in range(jobs)]
    dead = " ".join(f"{number:016x}" for number in range(followers))
    for job_id in ids:
        world.redis.hset(world.keys.job(job_id), "gw", f"{dead} here")
    claims = world.claim(max_jobs=jobs).jobs
    with world.redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(world.keys.channel("here"))
        pubsub.get_message(timeout=STALL_S)
        commands = ("publish", "hset", "hdel", "hget", "hexists")
        before = calls_of(world, *commands)
        append_each(world, claims, 4)
        published, *on_hashes = (now - then for now, then in zip(calls_of(world, *commands), before, strict=True))
        assert published == min(followers + 1, MOST)
        assert sum(on_hashes) <= (4 + 2) * jobs  # the count of tokens at each, and its list
        assert {world.state(job_id)["gw"] for job_id in ids} == {"here"}
        append_each(world, claims, 1, start=4)
        assert calls_of(world, "publish")[0] == before[0] + published + 1
        world.redis.hset(world.keys.job(ids[0]), "gw", f"{dead} here")
        assert world.finish(claims[0], tokens=5)
        assert "gw" not in world.state(ids[0])


def test_followers_beyond_the_limit_leave_the_list_while_the_others_live(world: Any) -> None:
    job_id = world.enqueue()
    with world.redis.pubsub() as pubsub:
        names = [f"s{number}" for number in range(MOST + 44)]
        pubsub.subscribe(*map(world.keys.channel, names))
        for _ in names:
            pubsub.get_message(timeout=STALL_S)
        world.redis.hset(world.keys.job(job_id), "gw", " ".join(names))
        claims = world.claim().jobs
        append_each(world, claims, 2)
        assert world.state(job_id)["gw"].split() == names[44:]


def test_the_latest_followers_are_told_and_the_others_ask(world: Any) -> None:
    job_id = world.enqueue()
    for number in range(MOST + 3):
        world.run(world.cell.attach(job_id, f"s{number}"))
    assert world.state(job_id)["gw"].split() == [f"s{number}" for number in range(3, MOST + 3)]
    world.run(world.cell.attach(job_id, "s0"))
    assert world.state(job_id)["gw"].split() == [*(f"s{number}" for number in range(4, MOST + 3)), "s0"]
    world.run(world.cell.attach(job_id, "s7"))
    assert world.state(job_id)["gw"].split()[-3:] == [f"s{MOST + 2}", "s0", "s7"]
    assert len(world.state(job_id)["gw"].split()) == MOST


@pytest.mark.parametrize("gone", ["a", "b", "c", "ab", "d"])
def test_one_subscriber_leaves_and_the_others_stay_in_their_order(world: Any, gone: str) -> None:
    job_id, names = world.enqueue(), ["a", "b", "ab", "c"]
    for name in names:
        world.run(world.cell.attach(job_id, name))
    assert world.run(world.cell.detach(job_id, gone)) == (gone in names)
    assert world.state(job_id)["gw"].split(" ") == [name for name in names if name != gone]


def test_a_subscriber_of_jobs_with_different_followers_gets_one_message_of_all(world: Any) -> None:
    ids = sorted(world.enqueue() for _ in range(4))
    for number, job_id in enumerate(ids):
        world.run(world.cell.attach(job_id, "here"))
        for other in range(number):
            world.run(world.cell.attach(job_id, f"other{other}"))
    with world.redis.pubsub(ignore_subscribe_messages=True) as here, world.redis.pubsub() as other:
        for pubsub, name in ((here, "here"), (other, "other1")):
            pubsub.subscribe(world.keys.channel(name))
            pubsub.get_message(timeout=STALL_S)
        append_each(world, world.claim(max_jobs=4).jobs)
        heard = wire.decode_live(here.get_message(timeout=STALL_S)["data"])
        assert sorted(row[0].decode() for row in heard) == ids
        heard = wire.decode_live(other.get_message(timeout=STALL_S)["data"])
        assert sorted(row[0].decode() for row in heard) == ids[2:]
    assert [world.state(job_id)["gw"] for job_id in ids] == ["here", "here", "here other1", "here other1"]


async def test_a_reader_whose_place_was_taken_hears_of_what_it_missed(client: Any, connection: Any) -> None:
    job = await client.submit("a", model=fake.MODEL)
    claim = await fake.claimed(connection)
    events = client.events(job.id)
    await run(connection, fake.CELL.append([Append(job.id, claim.token, 0, fake.chunk_of([1], last=False))]))
    assert (await anext(events)).token_ids == (1,)
    await connection.hset(Keys().job(job.id), "gw", "another")
    await run(connection, fake.CELL.append([Append(job.id, claim.token, 1, fake.chunk_of([2], last=False))]))
    assert (await anext(events)).token_ids == (2,)
    assert client._subscriber.id in (await connection.hget(Keys().job(job.id), "gw")).decode().split()
    await events.aclose()
