"""langchain-anthropic: `ChatAnthropic` over the Messages API, whole and streamed, with tools and structured output."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Literal

import pydantic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from scripted_worker import MODEL, whole_text
from tool_answers import ANSWERS, TOOLS
from waiting import STALL_S

pytestmark = pytest.mark.clients

ANSWER = ANSWERS["hermes"]
CALLS = [(name, json.loads(arguments)) for name, arguments in ANSWER.calls]
_COUNT = itertools.count()
ASKED = "What will it be like?"


class City(pydantic.BaseModel):
    """A city."""

    name: Literal["Oslo", "Rome"]
    coast: Literal["north", "south"]


@pytest.fixture
def chat(gateway_url: str) -> Callable[..., ChatAnthropic]:
    """The connections that it opens are kept for other event loops, which are over, but not for other timeouts."""
    timeout = STALL_S + next(_COUNT)
    where = {"base_url": gateway_url, "api_key": "none", "timeout": timeout, "max_retries": 0, "max_tokens": 400}
    return lambda model, **fields: ChatAnthropic(model=model, **{**where, **fields})


def called(message: Any) -> list[tuple[str, Any]]:
    return [(call["name"], call["args"]) for call in message.tool_calls]


async def total(stream: Any) -> Any:
    chunks = [chunk async for chunk in stream]
    assert len(chunks) > 3
    return sum(chunks[1:], chunks[0])


async def test_an_answer_whole_streamed_and_batched(chat, worker):
    model = chat(MODEL, max_tokens=6)
    asked = [SystemMessage("be brief"), HumanMessage([{"type": "text", "text": "what?"}])]
    whole = await model.ainvoke(asked)
    assert whole.content == whole_text(6)
    assert (whole.response_metadata["stop_reason"], whole.usage_metadata["output_tokens"]) == ("max_tokens", 6)
    assert (await total(model.astream(asked))).text == whole_text(6)
    assert [message.content for message in await model.abatch([asked] * 3)] == [whole_text(6)] * 3


async def test_calls_and_what_they_found(chat, start_model):
    start_model("hermes", ANSWER.text, reply="Take a coat.")
    model = chat("hermes").bind_tools(TOOLS)
    whole = await model.ainvoke(ASKED)
    for message in (whole, await total(model.astream(ASKED))):
        assert message.text == ANSWER.content
        assert called(message) == CALLS
        assert message.response_metadata["stop_reason"] == "tool_use"
    found = [ToolMessage("rain", tool_call_id=call["id"]) for call in whole.tool_calls]
    assert (await model.ainvoke([HumanMessage(ASKED), whole, *found])).text == "Take a coat."


@pytest.mark.parametrize("choice", ["any", "City"])
async def test_a_call_that_must_be_made_is_made(chat, start_model, choice):
    start_model("hermes", "I would rather not.")
    model = chat("hermes").bind_tools([City], tool_choice=choice)
    (call,) = (await model.ainvoke("a city")).tool_calls
    City.model_validate(call["args"])


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_structured_output(chat, start_model, method):
    start_model("qwen3_coder", "I would rather not.")  # has no thoughts, which come before an answer
    found = await chat("qwen3_coder").with_structured_output(City, method=method).ainvoke("a city")
    assert isinstance(found, City)


async def test_thoughts(chat, start_model):
    start_model("hermes", "<think>\nRain.\n</think>\n\nTake a coat.")
    thinking = {"type": "enabled", "budget_tokens": 1024}
    message = await chat("hermes", thinking=thinking, max_tokens=2000).ainvoke(ASKED)
    assert [block["type"] for block in message.content] == ["thinking", "text"]
    assert (message.content[0]["thinking"], message.text) == ("Rain.", "Take a coat.")
