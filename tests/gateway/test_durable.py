"""A job's log by the read protocol of Durable Streams: catch-up, long polling, server-sent events, HEAD."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import fake_worker as fake
import httpx
import pytest
import redis.asyncio
from killable_server import forgotten_by, killable_service
from scripted_worker import MODEL, ScriptedWorker, text_of, whole_text
from sse import read_events
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.queue.calls import run
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append
from octavo.queue.streams import read_stream
from octavo.queue.wire import encode_result
from octavo.terms.messages import Chunk, JobStatus

OPEN_TAIL = {"stream-up-to-date": "true", "stream-closed": None}


async def submitted(http: httpx.AsyncClient, **sampling: Any) -> str:
    """The path of a new job's log."""
    job = (await http.post("/v1/jobs", json={"model": MODEL, "prompt": "hello", "sampling": sampling})).json()
    return job["links"]["log"]


async def read(http: httpx.AsyncClient, path: str, offset: str | None = None, **query: str) -> httpx.Response:
    return await http.get(path, params=query if offset is None else {"offset": offset, **query})


async def ended(http: httpx.AsyncClient, path: str) -> str:
    """The last offset of a log, once there is one."""

    async def closed() -> httpx.Response | None:
        head = await http.head(path)
        return head if head.headers.get("stream-closed") else None

    return (await until(closed)).headers["stream-next-offset"]


def text(messages: list[dict[str, Any]]) -> str:
    return "".join(message.get("text", "") for message in messages)


def assert_headers(reply: httpx.Response, **expected: str | None) -> None:
    assert {name: reply.headers.get(name.replace("_", "-")) for name in expected} == expected


class Frames:
    """The events of a live stream, as they come."""

    def __init__(self, reply: httpx.Response) -> None:
        self._lines = reply.aiter_lines()

    async def next(self) -> tuple[str, Any] | None:
        name, data = "", ""
        async for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data:"):
                data += line.removeprefix("data:")
            elif not line and name:
                return name, json.loads(data)
        return None

    async def until_end(self) -> list[tuple[str, Any]]:
        frames = []
        while (frame := await self.next()) is not None:
            frames.append(frame)
        return frames


async def test_a_whole_log_is_one_message_a_token_and_one_at_the_end(http, worker):
    path = await submitted(http, max_tokens=3, logprobs=1)
    last = await ended(http, path)
    reply = await read(http, path)
    assert_headers(reply, content_type="application/json", stream_closed="true", stream_up_to_date="true")
    assert_headers(reply, stream_next_offset=last, x_content_type_options="nosniff")
    *tokens, end = reply.json()
    assert [(one["offset"], one["index"], one["token_ids"], one["text"]) for one in tokens] == [
        (i + 1, 0, [i], text_of(0, i)) for i in range(3)
    ]
    assert [one["finish_reason"] for one in tokens] == [None, None, "length"]
    assert all(len(one["logprobs"]) == 1 for one in tokens)
    assert (end["offset"], end["status"], end["error"]) == (3, "completed", None)
    assert end["usage"]["completion_tokens"] == 3
    at_end = await read(http, path, last)
    assert (at_end.status_code, at_end.json()) == (200, [])
    assert_headers(at_end, stream_closed="true", stream_up_to_date="true", stream_next_offset=last)


async def test_every_offset_that_was_given_is_resumed_also_from_the_result(http, worker, redis_url):
    path = await submitted(http, max_tokens=7, n=2)
    await ended(http, path)
    whole = (await read(http, path)).json()
    offsets = ["-1", *(f"{i:012d}" for i in range(15)), "000000000014_1"]

    async def check() -> None:
        for i, offset in enumerate(offsets[1:]):
            assert (await read(http, path, offset)).json() == whole[i:]
        assert (await read(http, path, "-1")).json() == whole

    await check()
    await worker.expire_stream(path.split("/")[3])
    await check()
    assert offsets == sorted(offsets)


@pytest.mark.parametrize(
    "query",
    [
        "offset=",
        "offset=3",
        "offset=0,1",
        "offset=0%201",
        "offset=000000000001&offset=000000000002",
        "offset=000000000099",
        "offset=000000000001_1",
        "offset=000000000003_2",
        "offset=%D9%A0%D9%A0%D9%A0%D9%A0%D9%A0%D9%A0%D9%A0%D9%A0%D9%A0%D9%A0%D9%A0%D9%A1",
        "live=long-poll",
        "live=sse",
        "offset=-1&live=never",
    ],
)
async def test_what_is_no_offset_is_a_400(http, worker, query):
    path = await submitted(http, max_tokens=3)
    await ended(http, path)
    reply = await http.get(f"{path}?{query}")
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] in ("offset", "live")
    assert reply.headers["x-content-type-options"] == "nosniff"


async def test_unknown_jobs_and_those_of_others_are_404(http, own_gateway, redis_url):
    for query in ("", "?offset=now", "?offset=-1&live=sse", "?offset=-1&live=long-poll"):
        for job_id in (Keys().new_job_id(), "nothing"):
            assert (await http.get(f"/v1/jobs/{job_id}/log{query}")).status_code == 404
            assert (await http.head(f"/v1/jobs/{job_id}/log{query}")).status_code == 404
    url = own_gateway(api_keys="acme:a, globex:g")
    async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url, timeout=STALL_S) as keyed:
        keyed.headers["Authorization"] = "Bearer a"
        path = await submitted(keyed, max_tokens=2)
        await ended(keyed, path)
        for query in ("", "?offset=now", "?offset=-1&live=sse", "?offset=-1&live=long-poll"):
            assert (await keyed.get(path + query)).status_code in (200, 204)
            assert (await keyed.get(path + query, headers={"Authorization": "Bearer g"})).status_code == 404
        assert (await keyed.head(path, headers={"Authorization": "Bearer g"})).status_code == 404


async def test_the_tail_of_an_open_log(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        path = await submitted(http, max_tokens=4)

        async def two_tokens() -> bool:
            return len((await read(http, path)).json()) == 2

        await until(two_tokens)
        tail = "000000000002"
        assert_headers(await read(http, path), stream_next_offset=tail, **OPEN_TAIL)
        now = await read(http, path, "now")
        assert now.json() == []
        assert_headers(now, stream_next_offset=tail, cache_control="no-store", etag=None, **OPEN_TAIL)
        head = await http.head(path)
        assert (head.content, head.headers["content-type"]) == (b"", "application/json")
        assert_headers(head, stream_next_offset=tail, stream_closed=None, cache_control="no-store")
        poll = await read(http, path, tail, live="long-poll")  # keep_alive of this gateway is short
        assert (poll.status_code, poll.content) == (204, b"")
        assert_headers(poll, stream_next_offset=tail, **OPEN_TAIL)
        assert poll.headers["stream-cursor"].isdecimal()
        worker.go.set()
        last = await ended(http, path)
        assert text((await read(http, path, tail)).json()) == text_of(0, 2) + text_of(0, 3)
        for query, status in (({}, 200), ({"live": "long-poll"}, 204)):
            reply = await read(http, path, "now", **query)
            assert reply.status_code == status
            assert_headers(reply, stream_closed="true", stream_up_to_date="true", stream_next_offset=last)


async def test_long_polls_join_without_a_gap(own_gateway, redis_url):
    url = own_gateway(keep_alive=60.0)
    async with (
        ScriptedWorker(redis_url, pace=0.002),
        httpx.AsyncClient(base_url=url, timeout=STALL_S) as http,
    ):
        path = await submitted(http, max_tokens=60)
        messages, offset, cursor = [], "-1", ""
        while True:
            reply = await read(http, path, offset, live="long-poll", cursor=cursor)
            assert not cursor or int(reply.headers["stream-cursor"]) > int(cursor)
            cursor, offset = reply.headers["stream-cursor"], reply.headers["stream-next-offset"]
            messages += reply.json()
            if reply.headers.get("stream-closed"):
                break
        assert messages == (await read(http, path)).json()
        assert text(messages) == whole_text(60)


async def test_server_sent_events_follow_to_the_end(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        path = await submitted(http, max_tokens=4)
        async with http.stream("GET", path, params={"offset": "-1", "live": "sse"}) as reply:
            assert reply.headers["content-type"] == "text/event-stream"
            assert "no-cache" in reply.headers["cache-control"]
            stream = Frames(reply)
            seen = []
            while len([message for name, data in seen if name == "data" for message in data]) < 2:
                seen.append(await stream.next())
            worker.go.set()
            seen += await stream.until_end()
        whole = (await read(http, path)).json()
    assert [message for name, data in seen if name == "data" for message in data] == whole
    assert all(after[0] == "control" for before, after in itertools.pairwise(seen) if before[0] == "data")
    controls = [data for name, data in seen if name == "control"]
    assert [one["streamNextOffset"] for one in controls] == sorted({one["streamNextOffset"] for one in controls})
    assert all(one["upToDate"] for one in controls)
    assert all(one["streamCursor"].isdecimal() for one in controls[:-1])
    last = {"streamNextOffset": "000000000004_1", "upToDate": True, "streamClosed": True}
    assert controls[-1] == last
    for offset in ("now", "000000000004_1"):
        async with http.stream("GET", path, params={"offset": offset, "live": "sse"}) as reply:
            assert await Frames(reply).until_end() == [("control", last)]


async def test_an_empty_log_says_so_at_once(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=0):
        path = await submitted(http, max_tokens=4)
        for offset in ("-1", "now", "000000000000"):
            async with http.stream("GET", path, params={"offset": offset, "live": "sse"}) as reply:
                name, data = await Frames(reply).next()
                assert (name, data["streamNextOffset"], data["upToDate"]) == ("control", "000000000000", True)
            assert (await read(http, path, offset)).json() == []


async def test_live_streams_of_a_large_result_come_in_parts(http, redis_url, monkeypatch):
    monkeypatch.setattr("octavo_gateway.durable.routes.MOST_MESSAGES", 4)
    async with ScriptedWorker(redis_url) as worker:
        path = await submitted(http, max_tokens=10)
        await ended(http, path)
        for expire in (False, True):
            if expire:
                await worker.expire_stream(path.split("/")[3])
            first = await read(http, path)
            assert len(first.json()) == 4
            assert_headers(first, stream_up_to_date=None, stream_closed=None, stream_next_offset="000000000004")
            async with http.stream("GET", path, params={"offset": "-1", "live": "sse"}) as reply:
                frames = await Frames(reply).until_end()
            assert [len(data) for name, data in frames if name == "data"] == [4, 4, 3]
            assert [data.get("upToDate", False) for name, data in frames if name == "control"] == [False, False, True]
            messages = [message for name, data in frames if name == "data" for message in data]
            assert text(messages) == whole_text(10)


async def test_tags_change_when_the_log_does(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        path = await submitted(http, max_tokens=3)

        async def two_tokens() -> bool:
            return len((await read(http, path)).json()) == 2

        await until(two_tokens)
        first = await read(http, path)
        assert first.headers["cache-control"] == "private, no-cache"
        same = await http.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")
        assert_headers(same, etag=first.headers["etag"], stream_next_offset="000000000002")
        worker.go.set()
        last = await ended(http, path)
        changed = await http.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert changed.status_code == 200
        assert changed.headers["cache-control"].startswith("private, max-age=60")
        at_end = await read(http, path, last)
        assert len({first.headers["etag"], changed.headers["etag"], at_end.headers["etag"]}) == 3


async def test_a_browser_may_read_the_headers(own_gateway, redis_url):
    url = own_gateway(cors_origins="https://app.example")
    asked = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "if-none-match",
    }
    async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        path = await submitted(http, max_tokens=1)
        preflight = await http.options(path, headers=asked)
        assert "if-none-match" in preflight.headers["access-control-allow-headers"].lower()
        exposed = (await http.get(path, headers={"Origin": "https://app.example"})).headers[
            "access-control-expose-headers"
        ]
        names = {name.strip().lower() for name in exposed.split(",")}
        assert {"stream-next-offset", "stream-up-to-date", "stream-closed", "stream-cursor", "etag"} <= names


async def test_an_offset_that_holds_no_more_is_gone(own_gateway, tmp_path):
    """Two sequences, and a server that comes back without the job: its tokens may come in another order."""
    async with killable_service(tmp_path) as (server, client, connection):
        url = own_gateway(redis_url=server.url)
        async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
            job = await client.submit("hello", model=fake.MODEL, n=2, max_tokens=4)
            claim = await fake.claimed(connection)
            await fake_append(connection, claim, [(0, 0), (1, 0), (0, 1)])
            path = f"/v1/jobs/{job.id}/log"
            assert len((await read(http, path, "000000000002")).json()) == 1
            with forgotten_by(server, tmp_path):
                await fake_append(connection, claim, [(1, 1)], start=3)
            for query in ({}, {"live": "long-poll"}, {"live": "sse"}):
                gone = await read(http, path, "000000000002", **query)
                assert (gone.status_code, gone.json()["error"]["code"]) == (410, "offset_gone")
            assert len((await read(http, path)).json()) == 3


@pytest.mark.parametrize("moment", ["running", "ended"])
async def test_an_offset_holds_through_a_restart_that_loses_nothing(own_gateway, tmp_path, moment):
    async with killable_service(tmp_path) as (server, client, connection):
        url = own_gateway(redis_url=server.url)
        async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
            job = await client.submit("hello", model=fake.MODEL, n=2, max_tokens=4)
            claim = await fake.claimed(connection)
            await fake_append(connection, claim, [(0, 0), (1, 0), (0, 1)])
            path = f"/v1/jobs/{job.id}/log"
            whole = await read(http, path)
            place, tail = whole.headers["stream-next-offset"], (await http.head(path)).headers["stream-next-offset"]
            assert place == tail
            assert "000000000003" < place < "000000000003_1" < "000000000004"
            ids = [event.id async for event in first_events(http, f"/v1/jobs/{job.id}/stream", 3)]
            if moment == "ended":
                await fake_finish(connection, claim, 3)
            server.kill()
            server.start()
            if moment == "running":
                await fake_append(connection, claim, [(1, 1)], start=3)
                polled = await read(http, path, place, live="long-poll")
                assert [message["token_ids"] for message in polled.json()] == [[101]]
                await fake_finish(connection, claim, 4)
            rest = await read(http, path, place)
            assert (rest.status_code, rest.headers["stream-closed"]) == (200, "true")
            assert (await read(http, path, rest.headers["stream-next-offset"])).json() == []
            resumed = [event async for event in first_events(http, f"/v1/jobs/{job.id}/stream", 9, ids[1])]
            assert [event.event for event in resumed] == ["token"] * (len(resumed) - 1) + ["done"]
            assert resumed[0].data["offset"] == 3


async def first_events(http: httpx.AsyncClient, path: str, most: int, last_id: str = "") -> AsyncIterator[Any]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with http.stream("GET", path, headers=headers) as response:
        response.raise_for_status()
        async for event in read_events(response):
            if event.event is not None:
                yield event
                most -= 1
            if not most:
                return


async def fake_finish(connection: redis.asyncio.Redis, claim: Any, tokens: int) -> None:
    terminal = fake.Terminal(status=JobStatus.COMPLETED, usage=fake.Usage(completion_tokens=tokens))
    chunks = [chunk for event in await read_stream(connection, claim.job_id) if (chunk := event.chunk) is not None]
    call = fake.CELL.finish(claim.job_id, claim.token, terminal, encode_result(terminal, chunks))
    assert await run(connection, call)


async def fake_append(
    connection: redis.asyncio.Redis, claim: Any, tokens: list[tuple[int, int]], start: int = 0
) -> None:
    for at, (index, position) in enumerate(tokens, start):
        chunk = Chunk(index=index, token_ids=(100 * index + position,), texts=(f" {index}.{position}",))
        item = Append(claim.job_id, claim.token, at, chunk, several=claim.request.sampling.n > 1)
        (reply,) = await run(connection, fake.CELL.append([item]))
        assert reply.state == "ok"


async def test_a_page_is_read_in_one_round_trip_of_whatever_there_is(redis_url, redis_async):
    async with fake.fake_worker(redis_async, step=5), AsyncClient(redis_url) as client:
        job = await client.submit("fail 10", model=fake.MODEL, max_tokens=13, seed=3)
        await client.result(job.id)
        page = await client.page(job.id, 7)
        assert (page.info.status, page.is_last, page.holds) == (JobStatus.FAILED, True, True)
        assert [event.offset for event in page.events] == [10, 10]
        assert len(page.events[0].token_ids) == 3
