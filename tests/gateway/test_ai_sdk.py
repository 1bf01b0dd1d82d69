"""The AI SDK's providers, unmodified: a call, its result, an answer; objects; a gateway that is killed."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import recorded
from coding_agents import MODEL, NODE
from front import Front
from gateway_process import GatewayProcess
from programs import run_program
from waiting import until

pytestmark = [pytest.mark.node, pytest.mark.npm]

ROUTES = {
    "openai": "/v1/responses",
    "openai-chat": "/v1/chat/completions",
    "openai-compatible": "/v1/chat/completions",
    "anthropic": "/v1/messages",
}
BIRD = '{"bird":"heron","legs":2}'
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "note.txt"}}\n</tool_call>'
MADE = [["read", {"path": "note.txt"}, "a heron"]]
ANSWER = "It names a heron."

each_provider = pytest.mark.parametrize("provider", ROUTES)


def asking(provider: str, url: str, kind: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    return run_program("node", "ask.mjs", provider, url, MODEL, kind, folder=NODE)


async def answer_of(process: asyncio.subprocess.Process) -> dict[str, Any]:
    out, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    return json.loads(out)


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("kind", ["whole", "stream"])
@each_provider
async def test_a_turn_with_a_call(own_gateway, start_model, provider, kind):
    start_model(MODEL, CALL, reply=ANSWER)
    async with Front(own_gateway()) as front, asking(provider, front.url, kind) as process:
        answer = await answer_of(process)
    assert (answer["text"], answer["calls"], answer["reasons"]) == (ANSWER, MADE, ["tool-calls", "stop"])
    assert answer["warnings"] == []
    assert (answer["pieces"] > 1) == (kind == "stream")
    first, second = front.posted
    assert {(sent.path, sent.answer.status_code) for sent in (first, second)} == {(ROUTES[provider], 200)}
    if kind == "stream":
        recorded.check(f"ai-sdk-{provider}", first)
        recorded.check(f"ai-sdk-{provider}-result", second)


@each_provider
async def test_an_object(own_gateway, start_model, provider):
    start_model(MODEL, BIRD)
    async with Front(own_gateway()) as front, asking(provider, front.url, "object") as process:
        answer = await answer_of(process)
    assert answer["object"] == json.loads(BIRD)
    (sent,) = front.posted
    recorded.check(f"ai-sdk-{provider}-object", sent)


async def test_an_object_by_a_call_that_must_be_made(own_gateway, start_model):
    start_model(MODEL, "I would rather not.")
    async with Front(own_gateway()) as front, asking("anthropic", front.url, "object-by-call") as process:
        answer = await answer_of(process)
    assert {name: type(value) for name, value in answer["object"].items()} == {"bird": str, "legs": int}
    recorded.check("ai-sdk-anthropic-object-by-call", front.posted[0])


@pytest.mark.full
@each_provider
async def test_a_whole_answer_is_asked_for_again_after_a_kill(redis_url, start_model, tmp_path, provider):
    start_model(MODEL, CALL, reply=ANSWER, step_seconds=0.05)
    with GatewayProcess(redis_url, tmp_path / "1") as first, GatewayProcess(redis_url, tmp_path / "2") as second:
        urls = [await first.url(), await second.url()]
        async with Front(urls[0]) as front, asking(provider, front.url, "whole") as process:
            answering = asyncio.create_task(answer_of(process))
            await until(lambda: front.begun or answering.done())
            first.kill()
            front.gateway = urls[1]
            answer = await answering
    assert (answer["text"], answer["calls"]) == (ANSWER, MADE)
    assert front.begun == 3
    assert len(front.sent) == 2


@pytest.mark.full
@each_provider
async def test_a_stream_that_breaks_off_is_an_error(redis_url, start_model, tmp_path, provider):
    start_model(MODEL, ANSWER * 20, step_seconds=0.01)
    with GatewayProcess(redis_url, tmp_path / "gateway.log") as gateway:
        async with Front(await gateway.url()) as front, asking(provider, front.url, "stream") as process:
            answering = asyncio.create_task(process.communicate())
            await until(lambda: front.passed > 2000 or answering.done())
            gateway.kill()
            out, _ = await answering
    assert (process.returncode, out) == (1, b"")
    assert front.begun == 1
