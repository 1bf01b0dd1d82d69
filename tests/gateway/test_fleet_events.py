"""`/v1/fleet/events`: a snapshot, then differences that add up to what is there; one reader for all viewers."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.queue import wire
from octavo.terms.errors import MalformedMessage
from octavo.terms.messages import WorkerMap
from octavo_gateway.live.block_map import BlockMap, merged
from octavo_gateway.live.patches import patch

Json = dict[str, Any]


def applied(before: Json, change: Json) -> Json:
    """RFC 7396."""
    after = dict(before)
    for name, value in change.items():
        if value is None:
            after.pop(name, None)
        elif isinstance(value, dict):
            after[name] = applied(after.get(name) if isinstance(after.get(name), dict) else {}, value)
        else:
            after[name] = value
    return after


class View:
    """A client that keeps up with the events."""

    def __init__(self) -> None:
        self.stats: Json = {}
        self.kinds: list[str] = []

    def take(self, kind: str, data: Json) -> None:
        self.kinds.append(kind)
        self.stats = data["stats"] if kind == "snapshot" else applied(self.stats, data["stats"])


@asynccontextmanager
async def viewing(http: httpx.AsyncClient) -> AsyncIterator[View]:
    view = View()

    async def follow() -> None:
        async with http.stream("GET", "/v1/fleet/events") as reply:
            kind = ""
            async for line in reply.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    view.take(kind, json.loads(line.removeprefix("data: ")))

    task = asyncio.create_task(follow())
    try:
        yield view
    finally:
        task.cancel()


def without_none(value: Any) -> Any:
    return {k: without_none(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value


values = st.recursive(st.none() | st.integers(0, 3), lambda inner: st.dictionaries(st.sampled_from("abc"), inner))
objects = st.dictionaries(st.sampled_from("abc"), values)


@given(objects, objects)
def test_a_patch_leads_from_one_to_the_other(before: Json, after: Json) -> None:
    before, after = without_none(before), without_none(after)
    change = patch(before, after)
    assert applied(before, change) == after
    assert (change == {}) == (before == after)


def drawn(shown: Json) -> list[tuple[int, str | None]]:
    """Flags and job, or the state, of each block."""
    runs = shown["runs"]
    cells = [code for length, code in zip(runs[::2], runs[1::2], strict=True) for _ in range(length)]
    return [cell(code, shown["owners"]) for code in cells]


def cell(code: int, owners: dict[str, str]) -> tuple[int, str | None]:
    number = code & 0x3FFF
    return (code & 0xC000, owners[str(number)]) if number >= 16 else (code, None)


blocks = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 0x4001]) | st.sampled_from("vwxyz"), st.integers(1, 90)), min_size=1
)


def a_map(runs: list[tuple[int | str, int]], size: int) -> tuple[WorkerMap, list[tuple[int, str | None]]]:
    cells = ([code for code, length in runs for _ in range(length)] + [0] * size)[:size]
    owners = sorted({code for code in cells if isinstance(code, str)})
    codes = array("H", [16 + owners.index(code) if isinstance(code, str) else code for code in cells])
    lengths = array("I", [1] * size)
    expected = [(0, code) if isinstance(code, str) else (code, None) for code in cells]
    return WorkerMap("w", 1.0, 16, size, 0, tuple(owners), codes.tobytes(), lengths.tobytes()), expected


@given(st.lists(blocks, min_size=2, max_size=6), st.integers(1, 500), st.booleans())
def test_changes_of_a_map_add_up_to_the_map(maps: list[list[tuple[int | str, int]]], size: int, late: bool) -> None:
    known, shown, waiting = BlockMap(), {}, None
    for runs in maps:
        found, expected = a_map(runs, size)
        news = known.take(found)
        if waiting is not None and news is not None:
            news = merged(waiting, news)
        elif news is None:
            news = waiting
        if late and runs is not maps[-1]:
            waiting = news
            continue
        waiting = None
        if news is not None:
            if "runs" in news:
                shown = {**news}
            owners = applied(shown["owners"], news["owners"])
            cells = [code for n, code in zip(shown["runs"][::2], shown["runs"][1::2], strict=True) for _ in range(n)]
            for begin, length, code in zip(*[iter(news.get("changes", ()))] * 3, strict=True):
                cells[begin : begin + length] = [code] * length
            shown = {"owners": owners, "runs": [part for code in cells for part in (1, code)]}
        assert drawn(shown) == expected
        assert drawn(known.whole()) == expected


def test_a_job_keeps_its_number_when_another_leaves() -> None:
    known = BlockMap()
    known.take(a_map([("v", 40), ("w", 60)], 100)[0])
    assert known.take(a_map([(1, 40), ("w", 60)], 100)[0]) == {"owners": {"16": None}, "changes": [0, 40, 1]}


def test_a_map_says_what_is_behind_the_blocks() -> None:
    """Blocks of layers with a window, and slots; the change of a shape is a whole map."""
    known, (found, _) = BlockMap(), a_map([("v", 60), (1, 40)], 100)
    one = known.take(found)
    assert one is not None
    assert one.keys() == {"block_size", "device", "host", "owners", "runs"}
    apart = msgspec.structs.replace(found, device=70, host=10, windows=(12, 4), states=(3, 1))
    assert apart.size == 100
    assert wire.decode_map(wire.encode_map(apart)) == apart
    with pytest.raises(MalformedMessage):
        wire.decode_map(wire.encode_map(msgspec.structs.replace(apart, states=(4, 1))))
    several = known.take(apart)
    assert several == known.whole() == {**one, "device": 70, "host": 10, "windows": (12, 4), "states": (3, 1)}
    assert len(msgspec.msgpack.decode(wire.encode_map(found))) == 10, "as it was before there were any"


async def test_jobs_come_move_and_go(http: httpx.AsyncClient, worker: ScriptedWorker, redis_url: str) -> None:
    worker.hold_after = 2
    async with viewing(http) as view, AsyncClient(redis_url) as client:
        await until(lambda: "scripted" in view.stats.get("workers", {}))
        job = await client.submit("x", model=MODEL, max_tokens=5, tenant="acme")
        await until(lambda: view.stats["jobs"].get(job.id, {}).get("tokens") == 2)
        assert view.stats["jobs"][job.id]["lane"] == f"{MODEL} normal"
        assert view.stats["lanes"][f"{MODEL} normal"]["running"] == 1
        worker.go.set()
        await until(lambda: job.id not in view.stats["jobs"])
        assert view.kinds[0] == "snapshot"
        assert set(view.kinds[1:]) == {"change"}


async def test_viewers_share_one_reader_which_rests_without_them(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_sync: redis.Redis
) -> None:
    async def readings(seconds: float) -> int:
        before = redis_sync.info("commandstats").get("cmdstat_xlen", {}).get("calls", 0)
        await asyncio.sleep(seconds)
        return redis_sync.info("commandstats").get("cmdstat_xlen", {}).get("calls", 0) - before

    views = []
    async with asyncio.timeout(STALL_S):
        async with viewing(http) as one, viewing(http) as two, viewing(http) as three:
            views = [one, two, three]
            await until(lambda: all(view.kinds for view in views))
            assert 1 <= await readings(1.0) <= 6, "five a second, for all of them"
        await until(lambda: redis_sync.ping())
        await asyncio.sleep(0.5)
        assert await readings(1.0) == 0


async def test_a_viewer_that_slept_gets_a_snapshot(redis_url: str, worker: ScriptedWorker) -> None:
    from octavo_gateway.live.observer import Observer

    async with AsyncClient(redis_url) as client:
        observer = Observer(client)
        with observer.viewer() as sleeper, observer.viewer() as awake:
            assert (await sleeper.next()).startswith(b"event: snapshot")
            await awake.next()
            jobs = []
            for _ in range(3):
                jobs.append(await client.submit("x", model=MODEL, max_tokens=1))
                assert (await awake.next()).startswith(b"event: change")
            assert (await sleeper.next()).startswith(b"event: snapshot")
