"""Connections that ask without end, or never take what they asked for: each costs little, and is let go."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from scripted_worker import MODEL, ScriptedWorker, whole_text
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.terms.messages import JobStatus
from octavo_gateway.http.flow import Taking, after_heads
from octavo_gateway.http.parts import JsonInParts, pieces
from octavo_gateway.http.protocol import MAX_WAITING, HttpProtocol

LIVE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def post(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}


def address(url: str) -> tuple[str, int]:
    found = httpx.URL(url)
    return found.host, found.port or 80


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[HttpProtocol]:
    """All connections to gateways of this process, those of the past too."""
    found: list[HttpProtocol] = []
    connection_made = HttpProtocol.connection_made

    def noted(self: HttpProtocol, transport: asyncio.Transport) -> None:
        found.append(self)
        connection_made(self, transport)

    monkeypatch.setattr(HttpProtocol, "connection_made", noted)
    return found


# Requests that wait


async def test_no_more_than_64_requests_wait_on_a_connection_and_all_are_answered(
    gateway_url: str, redis_url: str, made: list[HttpProtocol]
) -> None:
    count = 300
    async with ScriptedWorker(redis_url, hold_after=1) as worker:
        reader, writer = await asyncio.open_connection(*address(gateway_url))
        writer.write(post("/v1/chat/completions", CHAT) + LIVE * count)
        await until(lambda: bool(worker.seen) and [len(one.pipeline) for one in made] == [MAX_WAITING])
        assert not made[0].transport.is_reading()
        worker.go.set()
        answers = [await answer(reader) for _ in range(1 + count)]
        assert json.loads(answers[0])["choices"][0]["message"]["content"] == whole_text(3)
        assert answers[1:] == [b'{"status":"ok"}'] * count
        writer.close()


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(STALL_S):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return await reader.readexactly(int(length.partition(b":")[2]))


async def test_bodies_with_blank_lines_are_read_whole(gateway_url: str, worker: ScriptedWorker) -> None:
    data = b"\n\r\n\n" * 2000 + json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1}).encode() + b"\n\n" * 500
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection(*address(gateway_url))
    writer.write((head + b"Content-Length: %d\r\n\r\n" % len(data) + data) * 3 + LIVE)
    for _ in range(3):
        assert json.loads(await answer(reader))["choices"][0]["text"] == whole_text(1)
    assert await answer(reader) == b'{"status":"ok"}'
    writer.close()


def test_pieces_end_behind_heads() -> None:
    data = LIVE * 5
    assert [after_heads(data, most) for most in (1, 2, 5, 6)] == [len(LIVE), 2 * len(LIVE), len(data), len(data)]
    assert after_heads(b"GET / HTTP/1.1\n\nGET /", 1) == 16


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waits_does_not_hide_that_the_client_has_left(
    gateway_url: str, redis_url: str, stream: bool
) -> None:
    async with ScriptedWorker(redis_url, hold_after=1) as worker, AsyncClient(redis_url) as client:
        _, writer = await asyncio.open_connection(*address(gateway_url))
        writer.write(post("/v1/chat/completions", {**CHAT, "stream": stream}) + LIVE)
        await until(lambda: bool(worker.seen))
        writer.close()

        async def cancelled() -> bool:
            (info,) = await client.jobs()
            return info.status is JobStatus.CANCELLED

        await until(cancelled)


# Answers that are not taken


class Wire:
    """A transport whose client takes bytes when the test says so."""

    def __init__(self) -> None:
        self.left = 100
        self.high: int | None = None

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.left


async def looks(taken: list[int]) -> int:
    """At which look the client is let go, of one that takes so many bytes before each look; 0: at none."""
    wire, gone = Wire(), []
    taking = Taking(wire, 1e6, lambda: gone.append(True))  # type: ignore[arg-type]
    assert wire.high == 0
    taking.begin()
    for number, size in enumerate(taken, 1):
        wire.left -= size
        taking._look()
        if gone:
            return number
    taking.end()
    assert taking._timer is None
    return 0


async def test_a_client_that_takes_a_byte_now_and_then_is_kept() -> None:
    assert await looks([0, 0, 0, 0]) == 4
    assert await looks([0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]) == 0
    assert await looks([1, 1, 0, 0, 0, 0]) == 6


TEXT = "word " * 200_000
READS = ["/v1/jobs/{id}/stream", "/v1/jobs/{id}/log?offset=-1&live=sse", "/v1/jobs/{id}/result"]  # a page fits a socket


class Wordy(ScriptedWorker):
    """Each token is a megabyte."""

    def _chunk(self, *arguments: Any) -> Any:
        chunk = super()._chunk(*arguments)
        return type(chunk)(**{**{f: getattr(chunk, f) for f in chunk.__struct_fields__}, "texts": (TEXT,)})


@pytest.mark.parametrize("path", READS)
async def test_a_client_that_never_reads_is_let_go(
    own_gateway: Callable[..., str], redis_url: str, path: str, made: list[HttpProtocol]
) -> None:
    url = own_gateway(stall_timeout=0.2)
    async with Wordy(redis_url), AsyncClient(redis_url) as client:
        job = await client.submit("x", model=MODEL, max_tokens=6)
        await job.result(timeout=STALL_S)
    connection = socket.create_connection(address(url))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    target = path.format(id=job.id)
    connection.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await until(lambda: bool(made) and made[0] not in made[0].connections)
    connection.close()


# Answers in parts


VALUES: list[Any] = [
    None,
    [1, 2.5, "é\n\ud7ff", {"a": None}],
    {"a": iter([1, 2, 3]), "b": iter(()), "c": {"d": "x" * 30_000 + '"\\\n' * 9000}},
    {"a": map(str, range(3)), "b": iter([iter([1]), {"c": iter([True])}])},
]
PLAIN: list[Any] = [
    VALUES[0],
    VALUES[1],
    {"a": [1, 2, 3], "b": [], "c": {"d": "x" * 30_000 + '"\\\n' * 9000}},
    {"a": ["0", "1", "2"], "b": [[1], {"c": [True]}]},
]


@pytest.mark.parametrize(("value", "plain"), [*zip(VALUES, PLAIN, strict=True)])
def test_pieces_are_the_json_of_the_whole(value: Any, plain: Any) -> None:
    found = list(pieces(value))
    assert json.loads("".join(found)) == plain
    assert max(map(len, found)) < 3 * 8192


async def test_nothing_of_an_answer_stays_while_its_client_keeps_it_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []
    kept: list[bool] = []

    async def load() -> Any:
        loads.append(1)
        return {"a": iter(range(50_000))}

    request: Any = httpx.Request("GET", "http://x")
    answered = JsonInParts(request, await load(), load)
    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])
            if len(bodies) == 2:
                await until(lambda: answered._rest is None)
                kept.append(answered._rest is not None)

    await answered.stream_response(send)
    assert json.loads(b"".join(bodies)) == {"a": list(range(50_000))}
    assert (len(loads), kept) == (2, [False])
    assert max(map(len, bodies)) < 2 * 32 * 1024


async def test_a_long_result_comes_whole(http: httpx.AsyncClient, redis_url: str) -> None:
    async with Wordy(redis_url), AsyncClient(redis_url) as client:
        body = {"model": MODEL, "prompt": "x", "sampling": {"max_tokens": 3, "n": 2, "logprobs": 2}}
        job = (await http.post("/v1/jobs", json=body)).json()
        result = await client.result(job["id"], timeout=STALL_S)
        found = (await http.get(job["links"]["result"])).json()
        assert [one["text"] for one in found["sequences"]] == [TEXT * 3] * 2
        assert [tuple(one["token_ids"]) for one in found["sequences"]] == [s.token_ids for s in result.sequences]
        assert [len(one["logprobs"]) for one in found["sequences"]] == [3, 3]
        assert (found["prompt_logprobs"], found["usage"]["completion_tokens"]) == (None, 6)
        head = await http.head(job["links"]["result"])
        assert (head.status_code, head.content) == (200, b"")


async def test_an_answer_of_a_log_is_not_larger_than_it_must_be(http: httpx.AsyncClient, redis_url: str) -> None:
    async with Wordy(redis_url), AsyncClient(redis_url) as client:
        job = await client.submit("x", model=MODEL, max_tokens=3)
        await job.result(timeout=STALL_S)
    texts, offset, closed = [], "-1", False
    while not closed:
        answered = await http.get(f"/v1/jobs/{job.id}/log", params={"offset": offset})
        messages = answered.json()
        assert len(messages) <= 1 or sum(len(one.get("text", "")) for one in messages[:-1]) < len(TEXT)
        texts += [one["text"] for one in messages if "text" in one]
        offset, closed = answered.headers["stream-next-offset"], "stream-closed" in answered.headers
    assert texts == [TEXT] * 3
