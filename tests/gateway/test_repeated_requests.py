"""A request with an `Idempotency-Key` may be sent again: its jobs outlive the connection. A repeat, streamed or not, by
this gateway or another, is answered from its first token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from gateway_process import GatewayProcess
from scripted_worker import MODEL, ScriptedWorker, whole_text
from tool_answers import ANSWERS, TOOLS
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.queue.keys import Keys

TOKENS = 12
MESSAGES = [{"role": "user", "content": "hello"}]
UI_MESSAGES = [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hello"}]}]
KEY = {"Idempotency-Key": "once"}

Body = dict[str, Any]
REQUESTS: dict[str, tuple[str, Body]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": TOKENS}),
    "samples": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": TOKENS, "n": 2}),
    "completion": ("/v1/completions", {"prompt": "hello", "max_tokens": TOKENS}),
    "prompts": ("/v1/completions", {"prompt": ["hello", "ho"], "max_tokens": TOKENS}),
    "message": ("/v1/messages", {"messages": MESSAGES, "max_tokens": TOKENS}),
    "response": ("/v1/responses", {"input": "hello", "max_output_tokens": TOKENS}),
    "unstored": ("/v1/responses", {"input": "hello", "max_output_tokens": TOKENS, "store": False}),
}


def text_of(kind: str, answer: Any) -> list[str]:
    """The texts of a whole answer."""
    match kind:
        case "chat" | "samples":
            return [choice["message"]["content"] for choice in answer["choices"]]
        case "completion" | "prompts":
            return [choice["text"] for choice in answer["choices"]]
        case "message":
            return [answer["content"][0]["text"]]
        case _:
            return [answer["output"][0]["content"][0]["text"]]


def added(kind: str, event: Any) -> dict[int, str]:
    """The addition of one event of a stream to its texts."""
    if kind in ("chat", "samples"):
        return {choice["index"]: choice["delta"].get("content") or "" for choice in event["choices"]}
    if kind in ("completion", "prompts"):
        return {choice["index"]: choice["text"] for choice in event["choices"]}
    if event["type"] not in ("content_block_delta", "response.output_text.delta"):
        return {}
    return {0: event["delta"]["text"] if kind == "message" else event["delta"]}


async def read(http: httpx.AsyncClient, kind: str, change: Body | None = None, most: int = 10_000) -> list[str]:
    """The texts of a streamed answer; the connection is dropped after `most` pieces of them."""
    path, body = REQUESTS[kind]
    texts: dict[int, str] = {}
    body = {"model": MODEL, "stream": True, **body, **(change or {})}
    async with http.stream("POST", path, json=body, headers=KEY) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                for index, text in added(kind, json.loads(line.removeprefix("data: "))).items():
                    texts[index] = texts.get(index, "") + text
                    most -= bool(text)
            if most <= 0:
                break
    return [texts[index] for index in sorted(texts)]


async def ask(http: httpx.AsyncClient, kind: str, **change: Any) -> httpx.Response:
    path, body = REQUESTS[kind]
    return await http.post(path, json={"model": MODEL, **body, **change}, headers=KEY)


def whole(kind: str) -> list[str]:
    return (
        [whole_text(TOKENS, sequence) for sequence in range(2)]
        if kind == "samples"
        else [whole_text(TOKENS)] * (2 if kind == "prompts" else 1)
    )


async def all_end(http: httpx.AsyncClient) -> list[str]:
    """How the jobs there are ended."""

    async def ended() -> list[str] | None:
        states = [job["status"] for job in (await http.get("/v1/jobs")).json()["data"]]
        return states if states and not {"queued", "running"} & set(states) else None

    return await until(ended)


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_repeat_is_answered_from_the_first_token_whatever_became_of_the_first_connection(
    http: httpx.AsyncClient, redis_url: str, kind: str
) -> None:
    async with ScriptedWorker(redis_url, hold_after=TOKENS // 2) as worker:
        begun = await read(http, kind, most=2)
        assert any(begun)
        repeat = asyncio.create_task(read(http, kind))
        await asyncio.sleep(0)
        worker.go.set()
        assert await repeat == whole(kind)
        assert set(await all_end(http)) == {"completed"}
        again = await ask(http, kind)
        assert again.status_code == 200, again.text
        assert text_of(kind, again.json()) == whole(kind)
        assert (await ask(http, kind)).json() == again.json()  # to the time of its acceptance
        assert len(worker.seen) == (2 if kind == "prompts" else 1)


@pytest.mark.parametrize("kind", ["chat", "message", "unstored"])
async def test_a_whole_answer_survives_its_connection_as_well(
    http: httpx.AsyncClient, redis_url: str, kind: str
) -> None:
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await ask(http, kind)
        await until(lambda: bool(worker.seen))
        worker.go.set()
        assert text_of(kind, (await ask(http, kind)).json()) == whole(kind)
        assert len(worker.seen) == 1


CHANGES: list[tuple[str, Body]] = [
    ("chat", {"messages": [{"role": "user", "content": "other"}]}),
    ("chat", {"user": "somebody"}),
    ("chat", {"metadata": {"a": "b"}}),
    ("completion", {"echo": True}),
    ("prompts", {"prompt": ["hello"]}),
    ("message", {"metadata": {"user_id": "somebody"}}),
    ("response", {"store": False}),
    ("response", {"user": "somebody"}),
    ("response", {"metadata": {"a": "b"}}),
    ("unstored", {"store": True}),
    ("unstored", {"safety_identifier": "somebody"}),
]


@pytest.mark.parametrize(("kind", "change"), CHANGES, ids=[f"{kind}: {min(change)}" for kind, change in CHANGES])
async def test_another_request_under_the_same_key_is_a_conflict(
    http: httpx.AsyncClient, worker: ScriptedWorker, kind: str, change: Body
) -> None:
    assert (await ask(http, kind)).is_success
    refused = await ask(http, kind, **change)
    assert refused.status_code == 409, refused.text
    assert "key" in refused.json()["error"]["message"]
    assert (await ask(http, kind)).is_success


async def test_the_same_key_at_another_endpoint_is_a_conflict(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    assert (await ask(http, "chat")).is_success
    assert [(await ask(http, kind)).status_code for kind in ("completion", "message", "response")] == [409] * 3


async def test_prompts_that_were_refused_beside_others_are_submitted_by_the_repeat(
    own_gateway: Callable[..., str], redis_url: str
) -> None:
    url = own_gateway(max_queued_jobs=1)
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        async with ScriptedWorker(redis_url):
            pass  # it leaves its model behind
        assert (await ask(http, "prompts")).status_code == 429
        async with ScriptedWorker(redis_url) as worker:
            assert await all_end(http) == ["completed"]
            assert text_of("prompts", (await ask(http, "prompts")).json()) == whole("prompts")
            assert len(worker.seen) == 2


async def test_a_repeat_goes_on_where_its_gateway_was_killed(
    http: httpx.AsyncClient, redis_url: str, gateway_process: GatewayProcess
) -> None:
    async with (
        httpx.AsyncClient(base_url=await gateway_process.url(), timeout=STALL_S) as first,
        ScriptedWorker(redis_url, hold_after=3) as worker,
    ):
        stream = asyncio.create_task(read(first, "chat"))
        await until(lambda: bool(worker.seen))
        gateway_process.kill()
        with pytest.raises(httpx.HTTPError):
            await stream
        worker.go.set()
        assert await read(http, "chat") == whole("chat")
        assert len(worker.seen) == 1


@pytest.mark.full
async def test_a_repeat_goes_on_where_its_worker_was_killed(
    http: httpx.AsyncClient, redis_url: str, start_model: Callable[..., Any]
) -> None:
    first = start_model("hermes", ANSWERS["hermes"].text, step_seconds=0.02)
    body = {"model": "hermes", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 400}
    stream = asyncio.create_task(http.post("/v1/chat/completions", json={**body, "stream": True}, headers=KEY))
    async with AsyncClient(redis_url) as client:

        async def some_tokens() -> bool:
            return any(info.tokens > 20 for info in await client.jobs())

        await until(some_tokens)
        stream.cancel()
        first.send(signal.SIGKILL)
        start_model("hermes", ANSWERS["hermes"].text, number=1)
        answer = (await http.post("/v1/chat/completions", json=body, headers=KEY)).json()
        (info,) = await client.jobs()
        assert info.attempts == 2
        undisturbed = (await http.post("/v1/chat/completions", json=body)).json()
    assert said(answer) == said(undisturbed)


def said(answer: Any) -> Any:
    """A message without the ids of its calls, which are those of a job."""
    message = answer["choices"][0]["message"]
    return [message["content"], [call["function"] for call in message.get("tool_calls") or ()]]


@pytest.mark.parametrize("kind", ["chat", "completion", "response", "unstored"])
async def test_a_repeat_is_of_the_moment_of_the_first_request(
    http: httpx.AsyncClient, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    first = (await ask(http, kind)).json()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 1000)
    assert (await ask(http, kind)).json() == first


async def test_a_repeat_in_the_background_tells_how_the_response_stands_now(
    http: httpx.AsyncClient, redis_url: str
) -> None:
    async with ScriptedWorker(redis_url, hold_after=1) as worker:
        first = await ask(http, "response", background=True)
        assert (first.status_code, first.json()["status"]) == (202, "queued")
        worker.go.set()
        await all_end(http)
        again = await ask(http, "response", background=True)
        assert (again.json()["id"], again.json()["status"]) == (first.json()["id"], "incomplete")
        assert text_of("response", again.json()) == whole("response")


async def test_a_late_repeat_does_not_make_an_earlier_answer_the_latest_of_its_chat(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_url: str
) -> None:
    body = {"id": "c", "model": MODEL, "messages": UI_MESSAGES}
    async with AsyncClient(redis_url) as client:
        for key in ("1", "2", "1"):
            assert (await http.post("/v1/chat", json=body, headers={"Idempotency-Key": key})).is_success
            await asyncio.sleep(0.002)  # ids of one millisecond are in no order
        newest, _ = await client.jobs()
        assert await client.chat_job("c", tenant="default") == newest.id
        await connection_forgets(client, "c")
        assert (await http.post("/v1/chat", json=body, headers={"Idempotency-Key": "2"})).is_success
        assert await client.chat_job("c", tenant="default") == newest.id


async def connection_forgets(client: AsyncClient, chat_id: str) -> None:
    """As if the gateway had died before it noted the job of the chat."""
    await client._redis.delete(Keys().chat("default", chat_id))


async def test_another_chat_under_the_same_key_is_a_conflict(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    body = {"id": "c", "model": MODEL, "messages": UI_MESSAGES}
    assert (await http.post("/v1/chat", json=body, headers=KEY)).is_success
    assert (await http.post("/v1/chat", json={**body, "id": "d"}, headers=KEY)).status_code == 409
