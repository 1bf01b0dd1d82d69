"""`/v1/files` as the openai package speaks it, and as clients do that break off, are slow, or ask for what is gone."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import openai
import pytest
import redis
from serving import serving
from waiting import STALL_S, eventually

from octavo.terms.batches import MAX_FILE_BYTES
from octavo_gateway.files.ranges import span_of
from octavo_gateway.settings import GatewaySettings

LINES = b'{"custom_id": "a"}\n' * 1000


def stored(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and path.name != "mark"]


async def test_a_file_goes_up_and_comes_back(ai: openai.AsyncOpenAI, other: openai.AsyncOpenAI) -> None:
    name = 'in "1".jsonl\u2028'
    made = await ai.files.create(file=(name, LINES), purpose="batch")
    assert (made.bytes, made.purpose, made.status, made.object) == (len(LINES), "batch", "processed", "file")
    assert made.expires_at == made.created_at + 30 * 86_400
    assert await ai.files.retrieve(made.id) == made
    assert await ai.files.wait_for_processing(made.id) == made
    assert (await ai.files.content(made.id)).content == LINES
    for ask in (other.files.retrieve, other.files.content, other.files.delete):
        with pytest.raises(openai.NotFoundError):
            await ask(made.id)
    gone = await ai.files.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "file")
    with pytest.raises(openai.NotFoundError) as error:
        await ai.files.content(made.id)
    assert error.value.code == "file_not_found"


async def test_a_file_is_kept_as_long_as_it_was_asked_for(
    ai: openai.AsyncOpenAI, redis_sync: redis.Redis, folder: Path
) -> None:
    short = await ai.files.create(
        file=b"x", purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    kept = await ai.files.create(file=b"", purpose="user_data")
    assert (short.expires_at, kept.expires_at) == (short.created_at + 3600, None)
    assert (await ai.files.content(kept.id)).content == b""
    redis_sync.hset(f"{{c00}}:f:{short.id}", "exp", 1)
    with pytest.raises(openai.NotFoundError):
        await ai.files.retrieve(short.id)
    for seconds in (3599, 2_592_001):
        with pytest.raises(openai.BadRequestError):
            await ai.files.create(
                file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": seconds}
            )
    assert len(stored(folder)) == 2


async def test_files_are_listed_in_pages(ai: openai.AsyncOpenAI, other: openai.AsyncOpenAI) -> None:
    made = [(await ai.files.create(file=b"x", purpose="batch")).id for _ in range(4)]
    data = (await ai.files.create(file=b"x", purpose="user_data")).id
    await other.files.create(file=b"x", purpose="batch")
    assert [file.id async for file in ai.files.list(limit=2)] == [data, *reversed(made)]
    assert [file.id async for file in ai.files.list(order="asc", limit=3)] == [*made, data]
    assert [file.id async for file in ai.files.list(purpose="user_data")] == [data]
    page = await ai.files.list(limit=2, after=made[2], purpose="batch")
    assert ([file.id for file in page.data], page.has_more) == ([made[1], made[0]], False)
    with pytest.raises(openai.BadRequestError):
        await ai.files.list(after="nonsense")


async def test_a_range_of_a_file(ai: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    made = await ai.files.create(file=("a", bytes(range(100))), purpose="user_data")
    url = f"/v1/files/{made.id}/content"
    answer = await http.get(url, headers={"Range": "bytes=10-19"})
    assert (answer.status_code, answer.content) == (206, bytes(range(10, 20)))
    assert answer.headers["content-range"] == "bytes 10-19/100"
    whole = await http.get(url)
    assert whole.headers["content-disposition"] == f'attachment; filename="{made.id}.jsonl"'
    assert whole.headers["x-content-type-options"] == "nosniff"
    head = await http.head(url)
    assert (head.headers["content-length"], head.content) == ("100", b"")
    beyond = await http.get(url, headers={"Range": "bytes=100-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */100")


def test_spans() -> None:
    assert span_of("bytes=-5", 100) == (95, 100)
    assert span_of("bytes=-500", 100) == (0, 100)
    assert span_of("bytes=90-500", 100) == (90, 100)
    for ignored in (None, "", "bytes=-", "bytes=1-2,4-5", "lines=1-2", "bytes=5-2"):
        assert span_of(ignored, 100) is None


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ({"data": {"purpose": "batch"}, "files": {"other": b"x"}}, "missing_required_parameter"),
        ({"files": {"file": b"x"}}, "missing_required_parameter"),
        ({"data": {"purpose": "fine-tune"}, "files": {"file": b"x"}}, "invalid_purpose"),
        ({"data": {"purpose": "x" * 2000}, "files": {"file": b"x"}}, "invalid_form"),
        ({"data": {"purpose": "batch"}, "files": [("file", b"x"), ("file", b"y")]}, "invalid_form"),
        ({"data": {f"f{i}": "x" for i in range(20)}, "files": {"file": b"x"}}, "invalid_form"),
        ({"content": b"nonsense", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, "invalid_form"),
        ({"content": b"{}", "headers": {"Content-Type": "application/json"}}, "unsupported_media_type"),
    ],
)
async def test_a_form_that_is_wrong_leaves_nothing(
    http: httpx.AsyncClient, folder: Path, form: dict, code: str
) -> None:
    answer = await http.post("/v1/files", **form)
    assert answer.status_code in (400, 415)
    assert answer.json()["error"]["code"] == code
    await until_empty(folder)


async def until_empty(folder: Path) -> None:
    for _ in range(500):
        if not stored(folder):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(stored(folder))


async def test_fields_may_follow_the_file(http: httpx.AsyncClient) -> None:
    parts = [("file", ("a", b"abc")), ("purpose", (None, b"batch"))]
    assert (await http.post("/v1/files", files=parts)).json()["bytes"] == 3


async def test_a_tenant_keeps_no_more_than_it_may(
    ai: openai.AsyncOpenAI, other: openai.AsyncOpenAI, folder: Path
) -> None:
    first = await ai.files.create(file=b"x" * 600_000, purpose="user_data")
    with pytest.raises(openai.RateLimitError, match="delete some"):
        await ai.files.create(file=b"x" * 600_000, purpose="user_data")
    await other.files.create(file=b"x" * 600_000, purpose="user_data")
    await ai.files.delete(first.id)
    await ai.files.create(file=b"x" * 600_000, purpose="user_data")
    assert len(stored(folder)) == 2


def upload_head(gateway: str, length: int) -> tuple[socket.socket, bytes]:
    host, _, port = gateway.removeprefix("http://").partition(":")
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k1\r\n"
        f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {length}\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        '--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    return socket.create_connection((host, int(port)), timeout=30), head.encode()


def test_an_upload_that_breaks_off_leaves_nothing(gateway: str, folder: Path) -> None:
    connection, head = upload_head(gateway, 50_000_000)
    connection.sendall(head + b"x" * 3_000_000)
    eventually(lambda: len(stored(folder)) == 1)
    connection.close()
    eventually(lambda: not stored(folder))


def test_an_upload_beyond_the_limit_is_refused_at_once(gateway: str, folder: Path) -> None:
    connection, head = upload_head(gateway, MAX_FILE_BYTES * 2)
    connection.sendall(head)
    assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert stored(folder) == []


@pytest.mark.full
def test_an_upload_may_take_long_if_it_keeps_its_rate(gateway: str, folder: Path) -> None:
    """The limit for a whole request is two seconds here, that of an upload 100 KB a second over two."""
    connection, head = upload_head(gateway, 100_000_000)
    connection.sendall(head)
    connection.setblocking(True)
    import time

    began = time.monotonic()
    while time.monotonic() - began < 5.0:
        connection.sendall(b"x" * 60_000)
        time.sleep(0.1)
    assert len(stored(folder)) == 1
    assert connection.recv(100).startswith(b"HTTP/1.1 408")
    eventually(lambda: not stored(folder))


async def test_without_a_place_for_files_the_setting_is_named(redis_url: str) -> None:
    with serving(GatewaySettings(redis_url=redis_url)) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=2) as ai:
            with pytest.raises(openai.APIStatusError, match="OCTAVO_FILES") as error:
                await ai.files.create(file=b"x", purpose="batch")
    assert (error.value.status_code, error.value.code) == (501, "files_not_configured")


async def test_a_gateway_with_another_folder_says_so(ai: openai.AsyncOpenAI, redis_url: str, tmp_path: Path) -> None:
    made = await ai.files.create(file=b"x", purpose="batch")
    with serving(GatewaySettings(redis_url=redis_url, files=str(tmp_path / "elsewhere"))) as url:
        async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
            answer = await http.get(f"/v1/files/{made.id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "files_elsewhere")
