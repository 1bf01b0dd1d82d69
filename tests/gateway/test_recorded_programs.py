"""Requests that programs of others sent are answered as these read it: whole or streamed, in their shapes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pydantic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from coding_agents import MODEL
from front import Sent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from recorded import FOLDER, Recorded, ignored_by
from scripted_models import scripted_model
from serving import serving
from waiting import STALL_S

from octavo.service.server import EmbeddedServer
from octavo_gateway.settings import GatewaySettings

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
PING = '{"type":"ping"}'
TEXT = "It names a heron."
WHOLE = {"messages": Message, "responses": Response, "completions": ChatCompletion}
EVENTS: dict[str, pydantic.TypeAdapter[Any]] = {
    "messages": pydantic.TypeAdapter(RawMessageStreamEvent),
    "responses": pydantic.TypeAdapter(ResponseStreamEvent),
    "completions": pydantic.TypeAdapter(ChatCompletionChunk),
}


def is_free(name: str) -> bool:
    """True if no schema keeps the model from its text."""
    return "-object" not in name


each_request = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def model_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedServer() as server, ExitStack() as stack:
        room = {"max_model_len": 1 << 15, "num_blocks": 1 << 12}
        stack.enter_context(scripted_model(server.url, tmp_path_factory.mktemp("model"), MODEL, TEXT, **room))
        yield stack.enter_context(serving(GatewaySettings(redis_url=server.url)))


@pytest.fixture
async def http(model_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=model_url, timeout=STALL_S) as client:
        yield client


async def post(http: httpx.AsyncClient, recorded: Recorded, *, stream: bool) -> httpx.Response:
    body = {name: value for name, value in recorded.body.items() if stream or name != "stream_options"}
    response = await http.post(recorded.path, json={**body, "stream": stream}, headers=recorded.headers)
    assert response.status_code == 200, response.text
    assert set(ignored_by(response)) == set(recorded.ignored)
    return response


def said(answer: Any) -> str:
    if isinstance(answer, Message):
        return "".join(block.text for block in answer.content if block.type == "text")
    if isinstance(answer, Response):
        return answer.output_text
    return answer.choices[0].message.content


def added(event: Any) -> str:
    """The text that an event adds."""
    if isinstance(event, ChatCompletionChunk):
        return "".join(choice.delta.content or "" for choice in event.choices)
    if event.type == "content_block_delta" and event.delta.type == "text_delta":
        return event.delta.text
    return event.delta if event.type == "response.output_text.delta" else ""


@each_request
async def test_a_whole_answer(http, name):
    recorded = Recorded.load(name)
    response = await post(http, recorded, stream=False)
    answer = WHOLE[recorded.route].model_validate_json(response.content)
    assert is_free(name) is (said(answer) == TEXT)


@each_request
async def test_a_stream(http, name):
    recorded = Recorded.load(name)
    response = await post(http, recorded, stream=True)
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    told = [each for each in data if each not in ("[DONE]", PING)]
    events = [EVENTS[recorded.route].validate_json(each) for each in told]
    assert is_free(name) is ("".join(map(added, events)) == TEXT)


def test_nothing_private_is_recorded():
    private = ("/home/", "/root", "/tmp/", "/Users/", "device_id", "cwd", "Bearer", "sk-")
    for path in FOLDER.glob("*.json"):
        text = path.read_text()
        assert not [word for word in private if word in text], path.name
        assert len(text) < 25_000, path.name


def test_a_recording_is_short_and_tells_nothing_private():
    long = "a word and another " * 20
    body = {
        "model": MODEL,
        "metadata": {"user_id": '{"device_id": "0123"}'},
        "client_metadata": {"turn_id": "0123"},
        "input": [
            {"type": "message", "content": [{"type": "input_text", "text": long}]},
            {"type": "function_call", "call_id": "call_7b0491cbf35823e53a4f5b3c", "name": "read"},
            {"type": "function_call_output", "call_id": "call_7b0491cbf35823e53a4f5b3c", "output": long},
        ],
        "tools": [{"name": "read", "parameters": {"properties": {"path": {"description": long, "enum": ["a", "b"]}}}}],
        "prompt_cache_key": "01a221ad-8748-7be3-b948-ae6efd6741e3",
    }
    headers = {"user-agent": "program/1", "x-api-key": "secret", "authorization": "Bearer secret"}
    sent = Sent("POST", "/v1/responses", headers, body, httpx.Response(200, headers={"octavo-ignored": "a, b.c"}))
    recorded = Recorded.of(sent)
    assert (recorded.headers, recorded.ignored) == ({"user-agent": "program/1"}, ["a", "b.c"])
    text = json.dumps(recorded.body)
    assert len(text) < 700
    assert not [word for word in ("secret", "0123", "01a221ad", "7b0491") if word in text]
    _, call, output = recorded.body["input"]
    assert call["call_id"] == output["call_id"]
    assert recorded.body["tools"][0]["parameters"]["properties"]["path"]["enum"] == ["a", "b"]
    assert {"input.call_id", "tools.parameters", "metadata.user_id"} < recorded.fields
    assert "tools.parameters.properties" not in recorded.fields
