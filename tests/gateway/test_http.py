"""Connections of clients without a key: nothing that they do costs much, and every refusal says why."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from scripted_worker import MODEL, ScriptedWorker, whole_text
from waiting import STALL_S, eventually

from octavo_gateway.http.protocol import HttpProtocol

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    assert address.hostname is not None
    return socket.create_connection((address.hostname, address.port or 80), timeout=STALL_S)


def everything(connection: socket.socket) -> bytes:
    """All until the other side hangs up."""
    received = b""
    try:
        while data := connection.recv(1 << 16):
            received += data
    except ConnectionResetError:
        pass
    return received


def exchange(url: str, *pieces: bytes) -> bytes:
    """The answer to these bytes."""
    with connect(url) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return everything(connection)


def code_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    "pieces",
    [
        (HEAD, *[b"x-%d: y\r\n" % i for i in range(2000)]),
        (HEAD + b"x: " + b"y" * 9000,),
        (b"GET /" + b"x" * 9000,),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n",),
        (HEAD + b"x: " + b"y" * 9000 + b"\r\n\r\n",),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * 1_000_000,),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx: " + b"y" * 1_000_000,),
    ],
)
def test_a_head_has_a_largest_size_wherever_it_grows(
    own_gateway: Callable[..., str], pieces: tuple[bytes, ...]
) -> None:
    answer = exchange(own_gateway(max_header_bytes=8192), *pieces)
    assert not answer or code_of(answer) == (431, "headers_too_large")


def test_headers_without_end_are_cut_off(own_gateway: Callable[..., str]) -> None:
    headers = b"".join(b"x-%d: " % i + b"y" * 1000 + b"\r\n" for i in range(30_000))
    with connect(own_gateway()) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(HEAD + headers)


def test_a_body_may_be_as_large_as_its_own_limit_in_any_pieces(own_gateway: Callable[..., str]) -> None:
    body = b" " * 20_000 + json.dumps({"model": "none", "prompt": "x"}).encode()
    url = own_gateway(max_header_bytes=1024)

    def pieces(size: int) -> bytes:
        return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in chunked(body, size)) + b"0\r\n\r\n"

    for size in (1, 100, len(body)):
        head = HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        assert code_of(exchange(url, head + pieces(size))) == (404, "model_not_found")


def chunked(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize(
    ("sent", "counted_as"),
    [
        (b"\r\n", "408"),
        (b"GET /livez HTT", "408"),
        (HEAD, "408"),
        (HEAD + b"content-length: 100\r\n\r\n{", "499"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n", "499"),
    ],
)
def test_a_request_has_to_arrive_in_time(own_gateway: Callable[..., str], sent: bytes, counted_as: str) -> None:
    url = own_gateway(request_timeout=0.2)
    assert code_of(exchange(url, sent)) == (408, "request_timeout")
    eventually(lambda: f'status="{counted_as}"' in httpx.get(f"{url}/metrics", timeout=STALL_S).text)


def test_the_next_request_on_a_connection_has_to_arrive_in_time(own_gateway: Callable[..., str]) -> None:
    first, second = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET /livez HT"
    answers = exchange(own_gateway(request_timeout=0.2), first + second)
    assert answers.startswith(b"HTTP/1.1 200")
    assert b" 408 " in answers


def test_a_connection_without_any_request_is_closed_in_silence(own_gateway: Callable[..., str]) -> None:
    assert exchange(own_gateway(idle_timeout=0.2)) == b""


def test_an_idle_connection_is_closed_in_silence_behind_its_answer(own_gateway: Callable[..., str]) -> None:
    answer = exchange(own_gateway(idle_timeout=0.2), b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b'{"status":"ok"}')


def test_an_idle_connection_outlasts_the_time_for_a_request_and_the_comments_of_streams(
    own_gateway: Callable[..., str],
) -> None:
    """Also one that a load balancer has opened ahead; a head that has begun has no more time than before."""
    url = own_gateway(request_timeout=0.05, keep_alive=0.05)
    with connect(url) as connection:
        for _ in range(2):
            time.sleep(0.2)
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += connection.recv(1 << 16) or pytest.fail("it was closed")
        connection.sendall(b"GET /livez HTT")
        assert b" 408 " in everything(connection)


def test_connections_are_kept_longer_than_load_balancers_keep_theirs(
    own_gateway: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    made = HttpProtocol.connection_made
    monkeypatch.setattr(HttpProtocol, "connection_made", lambda self, to: kept.append(self) or made(self, to))
    url = own_gateway()
    assert httpx.get(f"{url}/livez", timeout=STALL_S).status_code == 200
    assert [one.timeout_keep_alive for one in kept] == [75.0]
    eventually(lambda: kept[0].timeout_keep_alive_task is None)  # it left, and nothing holds it


async def test_answers_take_their_time(own_gateway: Callable[..., str], redis_url: str) -> None:
    url = own_gateway(request_timeout=0.05)
    async with (
        ScriptedWorker(redis_url, pace=0.05) as worker,
        httpx.AsyncClient(base_url=url, timeout=STALL_S) as client,
    ):
        body = {"model": MODEL, "prompt": "x", "max_tokens": 8}
        answer = await client.post("/v1/completions", json=body)
        assert answer.json()["choices"][0]["text"] == whole_text(8)
        assert len(worker.seen) == 1


async def test_an_answer_is_given_although_the_next_request_stops_on_its_way(
    own_gateway: Callable[..., str], redis_url: str
) -> None:
    url = own_gateway(request_timeout=0.05)
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 8}).encode()
    first = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
    first += b"content-length: %d\r\n\r\n" % len(body) + body
    async with ScriptedWorker(redis_url, pace=0.05):
        received = await asyncio.to_thread(exchange, url, first + b"GET /livez HTTP/1.1\r\nhost:")
    assert received.startswith(b"HTTP/1.1 200")
    assert whole_text(8).encode() in received


def test_connections_have_a_cap_and_room_again_once_some_leave(own_gateway: Callable[..., str]) -> None:
    url = own_gateway(max_connections=5)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connect(url))
        eventually(lambda: b"too_many_connections" in exchange(url))
    eventually(lambda: httpx.get(f"{url}/livez", timeout=STALL_S).status_code == 200)


def test_an_upload_that_is_broken_off_is_no_fault_of_the_gateway(
    own_gateway: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    url = own_gateway()
    with caplog.at_level(logging.INFO):
        with connect(url) as connection:
            connection.sendall(HEAD + b"content-length: 100\r\n\r\n{")
        eventually(lambda: 'status="499"' in httpx.get(f"{url}/metrics", timeout=STALL_S).text)
    assert not re.search(r'_total{[^}]*status="500"} [1-9]', httpx.get(f"{url}/metrics", timeout=STALL_S).text)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_http_1_0_gets_no_chunks(gateway_url: str, worker: ScriptedWorker) -> None:
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 3, "stream": True}).encode()
    reader = f"POST /v1/completions HTTP/1.0\r\nHost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    answer = await asyncio.to_thread(exchange, gateway_url, reader + body)
    head, _, events = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert b"connection: close" in head.lower()
    lines = [line for line in events.decode().split("\n") if line]
    assert all(line.startswith(("data: ", ":")) for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_http_1_0_gets_plain_answers(gateway_url: str) -> None:
    answer = exchange(gateway_url, b"GET /livez HTTP/1.0\r\n\r\n")
    assert answer.endswith(b'{"status":"ok"}')


def test_what_is_no_http_is_refused_in_the_one_shape(gateway_url: str) -> None:
    assert code_of(exchange(gateway_url, b"\x16\x03\x01hello\r\n\r\n")) == (400, "invalid_http")


async def test_what_a_terminal_would_obey_does_not_reach_the_log(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "octavo_gateway"):
        await http.get("/v1/%1b%5d0;owned%07%0aforged%c2%9b31m")
        (record,) = await asyncio.to_thread(
            eventually, lambda: [record for record in caplog.records if hasattr(record, "path")]
        )
    assert record.getMessage().isprintable()
    assert record.path.isprintable()
    assert record.path.startswith("/v1/%1b")
