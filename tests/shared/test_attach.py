"""`attach` and `detach`: a subscriber gets one message a call, and the gone are forgotten."""

from __future__ import annotations

from typing import Any

from waiting import STALL_S

from octavo.queue import wire
from octavo.queue.protocol import Append
from octavo.terms.messages import Chunk, JobStatus


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
