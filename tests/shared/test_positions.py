"""Positions in streams of several sequences hold where nothing was lost, and are never taken for what they are not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_worker as fake
import pytest
import redis.asyncio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from killable_server import forgotten_by, killable_service
from waiting import STALL_S

from octavo import AsyncClient, Event, JobStatus
from octavo.client import submissions
from octavo.queue.calls import run
from octavo.queue.order import FIELDS, Order, order_of
from octavo.queue.protocol import Append, Claim
from octavo.queue.wire import encode_result
from octavo.terms.messages import Chunk
from octavo.terms.positions import Position

RECORDED = Path(__file__).parent / "data" / "scripts-before"
Token = tuple[int, int]  # sequence, place in it


def entry(claim: Claim, start: int, tokens: Sequence[Token], *, several: bool = True) -> Append:
    """Consecutive tokens of one sequence."""
    ids = tuple(100 * index + place for index, place in tokens)
    chunk = Chunk(index=tokens[0][0], token_ids=ids, texts=tuple(f"<{token}>" for token in ids))
    return Append(claim.job_id, claim.token, start, chunk, several)


async def write(connection: redis.asyncio.Redis, claim: Claim, start: int, *tokens: Token) -> None:
    for at, token in enumerate(tokens, start):
        (reply,) = await run(connection, fake.CELL.append([entry(claim, at, [token])]))
        assert reply.state == "ok"


async def finish(connection: redis.asyncio.Redis, claim: Claim, tokens: int) -> None:
    terminal = fake.Terminal(status=JobStatus.COMPLETED, usage=fake.Usage(completion_tokens=tokens))
    assert await run(connection, fake.CELL.finish(claim.job_id, claim.token, terminal, encode_result(terminal, [])))


def read_of(events: Sequence[Event]) -> list[Token]:
    return [divmod(token, 100) for event in events for token in event.token_ids]


async def everything(client: AsyncClient, job_id: str, after: int | str = 0) -> list[Event]:
    async def read() -> list[Event]:
        return [event async for event in client.events(job_id, after)]

    return await asyncio.wait_for(read(), STALL_S)


async def given_back(connection: redis.asyncio.Redis, claim: Claim) -> Claim:
    await run(connection, fake.CELL.release([(claim.job_id, claim.token)]))
    return await fake.claimed(connection)


@pytest.fixture(autouse=True)
def pings_follow_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "_PING_S", 0.1)


@pytest.mark.parametrize("restarted", ["before it is claimed", "while it runs", "after its end"])
async def test_every_position_holds_through_restarts_that_lose_nothing(tmp_path: Path, restarted: str) -> None:
    async with killable_service(tmp_path) as (server, client, connection):

        def restart(moment: str) -> None:
            if restarted == moment:
                server.kill()
                server.start()

        job = await client.submit("a", model=fake.MODEL, max_tokens=9, n=3)
        restart("before it is claimed")
        claim = await fake.claimed(connection)
        await write(connection, claim, 0, (2, 0), (0, 0), (1, 0))
        restart("while it runs")
        await write(connection, claim, 3, (1, 1), (0, 1))
        claim = await given_back(connection, claim)
        await write(connection, claim, 5, (2, 1), (0, 2))
        await finish(connection, claim, 7)
        restart("after its end")
        events = await everything(client, job.id)
        order = read_of(events)
        assert len(order) == 7
        for event in events[:-1]:
            rest = await everything(client, job.id, event.position)
            assert not any(one.reset for one in rest)
            assert read_of(rest) == order[event.offset :]
            page = await client.page(job.id, event.position)
            assert (page.holds, read_of(page.events)) == (True, order[event.offset :])
        info, tail = await client.tail(job.id)
        assert (info.tokens, str(tail)) == (7, events[-1].position)
        if restarted == "after its end":  # it ended in the run that accepted it, so plain offsets hold, too
            assert read_of(await everything(client, job.id, 4)) == order[4:]


async def test_a_reader_that_hears_tokens_gets_the_same_positions_as_one_that_reads_them(tmp_path: Path) -> None:
    async with killable_service(tmp_path) as (_, client, connection):
        job = await client.submit("a", model=fake.MODEL, max_tokens=9, n=2, follow=True)
        reader = asyncio.create_task(everything(client, job.id))
        claim = await fake.claimed(connection)
        await write(connection, claim, 0, (0, 0), (1, 0))
        claim = await given_back(connection, claim)
        await write(connection, claim, 2, (0, 1))
        read = await everything_so_far(client, job.id)
        await finish(connection, claim, 3)
        heard = await asyncio.wait_for(reader, STALL_S)
        assert [event.position for event in heard[:-1]] == [event.position for event in read]
        assert len({event.epoch for event in read}) == 2


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_reader_goes_on_where_it_was_after_a_restart_that_loses_nothing(tmp_path: Path, resumed: bool) -> None:
    """It neither starts over nor reads again what it has."""
    async with killable_service(tmp_path) as (server, client, connection):
        job = await client.submit("a", model=fake.MODEL, max_tokens=9, n=2)
        claim = await fake.claimed(connection)
        await write(connection, claim, 0, (0, 0), (1, 0), (0, 1))
        first = (await client.page(job.id)).events[0]
        heard: list[Event] = []

        async def listen() -> None:
            async for event in client.events(job.id, first.position if resumed else 0):
                heard.append(event)

        reader = asyncio.create_task(listen())
        while not heard or heard[-1].offset < 3:  # noqa: ASYNC110 - the server is another process
            await asyncio.sleep(0.01)
        (following,) = client._subscriber._readers[job.id]
        doubts = following.doubts
        server.kill()
        server.start()
        while following.doubts == doubts or following.behind:  # noqa: ASYNC110 - the server is another process
            await asyncio.sleep(0.01)
        assert (following.read, following.offset) == (3, 3)
        await write(connection, claim, 3, (1, 1))
        await finish(connection, claim, 4)
        await asyncio.wait_for(reader, STALL_S)
        assert not any(event.reset for event in heard)
        assert read_of(heard) == [(0, 0), (1, 0), (0, 1), (1, 1)][resumed:]


async def test_only_positions_of_forgotten_tokens_are_lost(tmp_path: Path) -> None:
    async with killable_service(tmp_path) as (server, client, connection):
        job = await client.submit("a", model=fake.MODEL, max_tokens=9, n=2)
        claim = await fake.claimed(connection)
        await write(connection, claim, 0, (0, 0), (1, 0))
        with forgotten_by(server, tmp_path):
            await write(connection, claim, 2, (0, 1), (0, 2))
            before = await everything_so_far(client, job.id)
        claim = await given_back(connection, claim)
        await write(connection, claim, 2, (1, 1), (0, 1), (0, 2))
        await finish(connection, claim, 5)
        now = [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2)]
        for event in before:
            rest = await everything(client, job.id, event.position)
            if event.offset <= 2:
                assert (rest[0].reset, read_of(rest)) == (False, now[event.offset :])
            else:
                assert (rest[0].reset, read_of(rest)) == (True, now)
                assert not (await client.page(job.id, event.position)).holds


async def everything_so_far(client: AsyncClient, job_id: str) -> list[Event]:
    return list((await client.page(job_id)).events)


async def test_a_resumed_reader_of_one_sequence_is_never_reset(client: AsyncClient, connection: Any) -> None:
    """Its listening connection is cut before it is known how many sequences there are."""
    first = await client.submit("first", model=fake.MODEL, follow=True)
    await first.cancel()
    subscriber = client._subscriber
    while not subscriber._hearing:  # noqa: ASYNC110 - the server is another process
        await asyncio.sleep(0.002)
    job = await client.submit("a", model=fake.MODEL, max_tokens=9)
    claim = await fake.claimed(connection)
    await write(connection, claim, 0, (0, 0), (0, 1))
    attach, cut = subscriber._attach, asyncio.Event()

    async def attach_late(reader: Any) -> bool:
        await cut.wait()
        return await attach(reader)

    subscriber._attach = attach_late  # type: ignore[method-assign]
    reader = asyncio.create_task(everything(client, job.id, 1))
    while job.id not in subscriber._readers:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    (following,) = subscriber._readers[job.id]
    doubts = following.doubts
    await connection.client_kill_filter(_type="pubsub")
    while following.doubts == doubts:  # noqa: ASYNC110 - the server is another process
        await asyncio.sleep(0.002)
    cut.set()
    await finish(connection, claim, 2)
    events = await asyncio.wait_for(reader, STALL_S)
    assert (any(event.reset for event in events), read_of(events)) == (False, [(0, 1)])


async def test_waiting_for_a_result_reads_no_stream_again(tmp_path: Path) -> None:
    async with killable_service(tmp_path) as (server, client, connection):
        job = await client.submit("a", model=fake.MODEL, max_tokens=9, n=2)
        claim = await fake.claimed(connection)
        await write(connection, claim, 0, (0, 0), (1, 0))
        server.kill()
        server.start()
        waiting = asyncio.create_task(client.result(job.id))
        while job.id not in client._subscriber._readers:  # noqa: ASYNC110 - the server is another process
            await asyncio.sleep(0.01)
        (following,) = client._subscriber._readers[job.id]
        await write(connection, claim, 2, (0, 1))
        await finish(connection, claim, 3)
        assert (await asyncio.wait_for(waiting, STALL_S)).status is JobStatus.COMPLETED
        assert following.heard.total() <= 1


# Without a server that is killed: its keys are set back to what they were.


@dataclass
class Owner:
    """A worker that has one job: the order that it has chosen, and what of it the server has."""

    claim: Claim
    placed: list[Token]
    stored: int
    source: str = ""  # of the script of before, which it uses

    def place(self, chance: random.Random) -> None:
        index = chance.randrange(3)
        self.placed.append((index, sum(token[0] == index for token in self.placed)))


@dataclass
class Scene:
    """One job with three sequences, and all positions that its readers were given, with what was before them."""

    world: Any
    chance: random.Random
    owner: Owner | None = None
    given: dict[Position, list[Token]] = field(default_factory=dict)
    lost: bool = False
    spoiled: bool = False

    def __post_init__(self) -> None:
        request = fake.JobRequest(model="toy", prompt="a", sampling={"n": 3})
        self.job_id = self.world.enqueue(request)

    def order(self) -> Order:
        return order_of(self.world.redis.hmget(self.world.keys.job(self.job_id), FIELDS))

    def read(self) -> None:
        tokens: list[Token] = []
        order = self.order()
        for event in self.world.stream(self.job_id):
            tokens = tokens + read_of([event])
            if (epoch := order.epoch_at(event.offset)) != "":
                self.given[Position(event.offset, epoch)] = tokens

    def claim(self, source: str = "") -> None:
        """A worker of before notes no order, so it must not be the one that writes a spoiled stream again."""
        if self.spoiled:
            source = ""
        if self.owner is not None:
            self.world.run(self.world.cell.release([(self.job_id, self.owner.claim.token)]))
        jobs = self.world.claim().jobs
        if jobs:  # else an owner of a forgotten future has it
            stored = read_of(self.world.stream(self.job_id))
            self.owner = Owner(jobs[0], stored, len(stored), source)

    def append(self) -> None:
        if self.owner is None:
            return
        self.owner.place(self.chance)
        for _ in range(self.chance.randint(1, 4)):
            if self.owner is None or self.owner.stored == len(self.owner.placed):
                return
            at = self.owner.stored
            item = entry(self.owner.claim, at, [self.owner.placed[at]], several=not self.owner.source)
            call = self.world.cell.append([item])
            if self.owner.source:
                (reply,) = call.parse(self.world.redis.eval(self.owner.source, 1, self.world.keys.prefix, *call.args))
            else:
                (reply,) = self.world.run(call)
            if reply.state == "fenced":
                self.owner = None
            else:
                self.owner.stored = reply.offset

    def forget(self, kept: dict[bytes, bytes]) -> None:
        self.world.redis.flushdb()
        for name, value in kept.items():
            self.world.redis.restore(name, 0, value)
        self.lost = True

    def spoil(self) -> None:
        """As after something else took the stream: its owner is to send all again."""
        self.world.redis.delete(self.world.keys.stream(self.job_id))
        self.world.redis.hset(self.world.keys.job(self.job_id), "n", 0)
        self.lost = self.spoiled = True

    def keep(self) -> dict[bytes, bytes]:
        return {name: self.world.redis.dump(name) for name in self.world.redis.scan_iter()}

    def check(self) -> None:
        """No position that holds stands for another order, and all hold where nothing was lost."""
        order, now = self.order(), read_of(self.world.stream(self.job_id))
        for position, before in self.given.items():
            if order.holds(position):
                assert now[: position.offset] == before
            else:
                assert self.lost


STEP = st.sampled_from(["append"] * 6 + ["read"] * 3 + ["claim", "claim before", "keep", "forget", "spoil"])

RESENT = [
    "claim",
    *["append"] * 4,
    "read",
    "spoil",
    "append",
    "claim",
    "append",
    "append",
]  # in part, by the first of two owners


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=60), seed=st.integers(0, 1 << 16))
@example(steps=RESENT, seed=1)
@example(steps=RESENT, seed=2)
@example(steps=RESENT, seed=3)
def test_a_position_that_holds_means_what_it_did_whatever_was_forgotten(
    world: Any, steps: list[str], seed: int
) -> None:
    world.redis.flushdb()
    world.know("toy")
    scene = Scene(world, random.Random(seed))
    kept = scene.keep()
    for step in steps:
        match step:
            case "append":
                scene.append()
            case "read":
                scene.read()
            case "claim":
                scene.claim()
            case "claim before":
                scene.claim((RECORDED / "append.lua").read_text(encoding="utf-8"))
            case "keep":
                kept = scene.keep()
            case "spoil":
                scene.spoil()
            case "forget":
                scene.forget(kept)
        scene.check()


@pytest.mark.parametrize("value", [b"", b"zzz", b"0123456:4", b"01234567:", b"01234567:3 x", b"\xff"])
def test_what_something_else_wrote_tells_nothing(value: bytes) -> None:
    order = order_of((b"a run", b"5", value))
    assert (order.epoch_at(3), order.holds(Position(3, "01234567")), order.holds(Position(3))) == ("", False, None)


def test_the_text_of_a_position_is_read_as_it_was_written() -> None:
    for position in (Position(), Position(7), Position(7, "0123abcd")):
        assert Position.of(str(position)) == position
    for text in ("", "-1", "7.", "7.0123abc", "7.0123ABCD", "7.0123abcd ", "٣", "7-1"):
        with pytest.raises(ValueError, match="no position"):
            Position.of(text)
