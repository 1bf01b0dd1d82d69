"""The UI message stream of a chat: started by POST, resumed by GET on any gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_worker import MODEL, ScriptedWorker, text_of, whole_text
from tool_answers import ANSWERS, TOOLS
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.ui.body import UiChatRequest, UiPart, _turns
from octavo.dialects.ui.parts import UiParts
from octavo.terms.errors import InvalidRequest
from octavo.terms.messages import AnswerFormat, Chunk, JobError, JobStatus, Terminal, Usage
from octavo.terms.models import Event


def body(*texts: str, chat: str = "c1", **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [
        {"id": f"m{i}", "role": roles[i % 2], "parts": [{"type": "step-start"}, {"type": "text", "text": text}]}
        for i, text in enumerate(texts or ("hi",))
    ]
    return {"id": chat, "messages": messages, "trigger": "submit-message", "model": MODEL, "max_tokens": 4, **more}


async def parts_of(reply: httpx.Response) -> AsyncIterator[Any]:
    """Parts as they come, `[DONE]` as it is."""
    async for line in reply.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ") if line == "data: [DONE]" else json.loads(line.removeprefix("data: "))


def text_in(parts: list[Any]) -> str:
    return "".join(part["delta"] for part in parts[:-1] if part["type"] == "text-delta")


async def test_an_answer_is_a_message_of_parts(http, worker):
    async with http.stream("POST", "/v1/chat", json=body("hi", "ho", "hm", temperature=0.0)) as reply:
        assert reply.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert reply.headers["content-type"] == "text/event-stream"
        parts = [part async for part in parts_of(reply)]
    assert [part if isinstance(part, str) else part["type"] for part in parts] == [
        *("start", "start-step", "text-start"),
        *["text-delta"] * 4,
        *("text-end", "finish-step", "finish"),
        "[DONE]",
    ]
    assert text_in(parts) == whole_text(4)
    assert parts[-2]["finishReason"] == "length"
    (request,) = worker.seen
    assert [(turn.role, turn.content) for turn in request.messages] == [
        ("user", "hi"),
        ("assistant", "ho"),
        ("user", "hm"),
    ]
    job = (await http.get(f"/v1/jobs/{parts[0]['messageId']}")).json()
    assert job["status"] == "completed"
    assert (await http.get("/v1/chat/c1/stream")).status_code == 204


async def test_a_reader_that_comes_back_gets_the_answer_from_its_beginning(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        async with http.stream("POST", "/v1/chat", json=body(chat="a b/ü")) as reply:
            async for part in parts_of(reply):
                if part.get("delta") == text_of(0, 1):
                    break
        async with http.stream("GET", "/v1/chat/a%20b%2F%C3%BC/stream") as reply:
            assert reply.headers["x-vercel-ai-ui-message-stream"] == "v1"
            worker.go.set()
            parts = [part async for part in parts_of(reply)]
    assert text_in(parts) == whole_text(4)
    assert len(worker.seen) == 1


async def test_a_chat_knows_its_latest_answer_and_its_tenant(own_gateway, redis_url):
    url = own_gateway(api_keys="acme:a, globex:g")
    async with (
        ScriptedWorker(redis_url, hold_after=1) as worker,
        httpx.AsyncClient(base_url=url, timeout=STALL_S) as http,
    ):
        acme, globex = {"Authorization": "Bearer a"}, {"Authorization": "Bearer g"}
        first = await begun(http, body("one"), acme)
        second = await begun(http, body("one", "two", "three"), acme)
        assert first != second
        assert (await http.get("/v1/chat/c1/stream", headers=globex)).status_code == 204
        assert (await http.delete("/v1/chat/c1/stream", headers=globex)).status_code == 204
        async with http.stream("GET", "/v1/chat/c1/stream", headers=acme) as reply:
            worker.go.set()
            parts = [part async for part in parts_of(reply)]
        assert parts[0]["messageId"] == second
        assert parts[-2]["type"] == "finish"


async def begun(http: httpx.AsyncClient, request: dict[str, Any], headers: dict[str, str] | None = None) -> str:
    """Starts an answer, leaves it after its first part. The id of its job."""
    async with http.stream("POST", "/v1/chat", json=request, headers=headers) as reply:
        async for part in parts_of(reply):
            return part["messageId"]
    raise AssertionError(reply.status_code)


async def test_a_chat_is_stopped(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=1), AsyncClient(redis_url) as client:
        job_id = await begun(http, body())
        async with http.stream("GET", "/v1/chat/c1/stream") as reply:
            assert (await http.delete("/v1/chat/c1/stream")).status_code == 202
            parts = [part async for part in parts_of(reply)]
        assert parts[-2]["type"] == "abort"
        assert (await client.info(job_id)).status is JobStatus.CANCELLED
        for method in ("GET", "DELETE"):
            assert (await http.request(method, "/v1/chat/c1/stream")).status_code == 204


async def test_fields_of_a_chat_completion_are_those_of_a_chat(http, worker):
    await begun(http, body(logit_bias={"5": 1.5}))
    assert worker.seen[0].sampling.logit_bias == {5: 1.5}


async def test_an_idempotency_key_names_the_same_answer(http, worker):
    jobs = {await begun_with_key(http) for _ in range(2)}
    assert len(jobs) == len(worker.seen) == 1


async def begun_with_key(http: httpx.AsyncClient) -> str:
    return await begun(http, body(), {"Idempotency-Key": "k"})


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"model": "absent"}, 404, "absent"),
        ({"model": None}, 400, "model"),
        ({"id": ""}, 400, "id"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "parts": [{"type": "file", "url": "data:,"}]}]}, 400, "messages.0.parts.0"),
        ({"n": 2}, 400, "n: "),
        ({"invented": 1}, 400, "invented"),
        ({"messages": [{"role": "user", "parts": [{"type": "text", "text": "x" * 300}]}]}, 400, "context"),
    ],
)
async def test_what_cannot_be_answered_is_an_error_before_the_stream(http, worker, change, status, said):
    reply = await http.post("/v1/chat", json={**body(), **change})
    assert reply.status_code == status
    assert said in reply.json()["error"]["message"]


async def test_a_gateway_that_leaves_tells_its_readers_to_resume(http, redis_url, gateway_process):
    async with (
        ScriptedWorker(redis_url, hold_after=2) as worker,
        httpx.AsyncClient(base_url=await gateway_process.url(), timeout=STALL_S) as leaving,
    ):
        async with leaving.stream("POST", "/v1/chat", json=body()) as reply:
            parts = []
            async for part in parts_of(reply):
                parts.append(part)
                if part.get("delta") == text_of(0, 1):
                    gateway_process.process.terminate()
        assert parts[-1]["type"] == "error"
        assert "resume" in parts[-1]["errorText"]
        worker.go.set()
        await until(lambda: completed(redis_url))


async def completed(redis_url: str) -> bool:
    async with AsyncClient(redis_url) as client:
        return [job.status for job in await client.jobs()] == [JobStatus.COMPLETED]


# The pure parts

USAGE = Usage(1, 2)
TEXTS = st.lists(st.text(max_size=4), min_size=1, max_size=12)


async def calls_in(reply: httpx.Response) -> list[tuple[str, str, Any]]:
    """Ids, names and inputs of all calls of a stream."""
    return [
        (part["toolCallId"], part["toolName"], part["input"])
        async for part in parts_of(reply)
        if part != "[DONE]" and part["type"] == "tool-input-available"
    ]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "llama3_json"])
async def test_a_resumed_stream_has_the_same_calls(http, start_model, name):
    """Formats without JSON, and calls without markers, are read with the schemas of the request."""
    start_model(name, ANSWERS[name].text, step_seconds=0.01)
    asked = {**body("what will it be like?"), "model": name, "tools": TOOLS, "max_tokens": 400}
    async with http.stream("POST", "/v1/chat", json=asked) as reply:
        async for _ in parts_of(reply):
            break
        async with http.stream("GET", "/v1/chat/c1/stream") as resumed:
            calls = await calls_in(resumed)
    assert [(call, given) for _, call, given in calls] == [
        (call, json.loads(arguments)) for call, arguments in ANSWERS[name].calls
    ]


def events_of(
    texts: list[str], cuts: list[int], end: Terminal, reason: str | None, form: AnswerFormat | None
) -> list[Event]:
    edges = sorted({0, len(texts), *(cut for cut in cuts if cut < len(texts))})
    found = []
    for start, stop in pairwise(edges):
        last = reason if stop == len(texts) else None
        chunk = Chunk(0, tuple(range(start, stop)), tuple(texts[start:stop]), None, last, None if start else form)
        found.append(Event(offset=stop, chunk=chunk))
    return [*found, Event(offset=len(texts), end=end)]


def parts(
    texts: list[str],
    cuts: list[int],
    end: Terminal,
    reason: str | None = "stop",
    form: AnswerFormat | None = None,
) -> list[Any]:
    made = UiParts("g00_0", AnswerParser("g00_0"))
    return [part for event in events_of(texts, cuts, end, reason, form) for part in made.add(event)]


@given(
    texts=TEXTS,
    cuts=st.lists(st.integers(1, 12)),
    status=st.sampled_from([JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED]),
)
def test_parts_do_not_depend_on_how_a_log_is_cut(texts: list[str], cuts: list[int], status: JobStatus) -> None:
    end = Terminal(status, USAGE, JobError("c", "why") if status is JobStatus.FAILED else None)
    reason = "stop" if status is JobStatus.COMPLETED else None
    made = parts(texts, cuts, end, reason)
    assert made == parts(texts, list(range(12)), end, reason)
    assert "".join(part["delta"] for part in made if part["type"] == "text-delta") == "".join(texts)
    assert made[-1]["type"] == {"completed": "finish", "cancelled": "abort"}.get(status.value, "error")
    opened = [part["id"] for part in made if part["type"] == "text-start"]
    assert opened == [part["id"] for part in made if part["type"] == "text-end"]


def test_thoughts_and_calls_are_parts_of_their_own() -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {"city": "Bonn"}}\n</tool_call>'
    texts, end = ["<think>", "hm", "</think>", "I look.", *call], Terminal(JobStatus.COMPLETED, USAGE)
    made = parts(texts, [], end, form=AnswerFormat("hermes", "think"))
    kinds = [part["type"] for part in made]
    assert kinds[:8] == [
        *("start", "start-step", "reasoning-start", "reasoning-delta", "reasoning-end"),
        *("text-start", "text-delta", "text-end"),
    ]
    available = next(part for part in made if part["type"] == "tool-input-available")
    assert (available["toolName"], available["input"]) == ("look", {"city": "Bonn"})
    deltas = "".join(part["inputTextDelta"] for part in made if part["type"] == "tool-input-delta")
    assert json.loads(deltas) == {"city": "Bonn"}
    assert made[-1] == {"type": "finish", "finishReason": "tool-calls"}


def test_calls_and_results_become_turns_of_a_chat_completion() -> None:
    tool = {"type": "tool-look", "toolCallId": "t1", "state": "output-available", "input": {"a": 1}, "output": {"b": 2}}
    request = UiChatRequest.model_validate(
        {
            "id": "c",
            "messages": [
                {"role": "user", "parts": [{"type": "text", "text": "q"}]},
                {
                    "role": "assistant",
                    "parts": [
                        {"type": "text", "text": "x"},
                        tool,
                        {"type": "step-start"},
                        {"type": "text", "text": "y"},
                    ],
                },
            ],
        }
    )
    call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    assert list(_turns(request.messages[1], "messages.1")) == [
        {"role": "assistant", "content": "x", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": '{"b": 2}'},
        {"role": "assistant", "content": "y"},
    ]
    with pytest.raises(InvalidRequest, match="not read here"):
        list(_turns(request.messages[0].model_copy(update={"parts": (UiPart(type="file"),)}), "messages.0"))
