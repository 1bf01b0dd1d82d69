"""langchain-openai: chat, tools, structured output, completions, and the Responses API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import openai
import pydantic
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from scripted_worker import MODEL, whole_text
from tool_answers import ANSWERS, TOOLS
from waiting import STALL_S

pytestmark = pytest.mark.clients

ANSWER = ANSWERS["hermes"]
CALLS = [(name, json.loads(arguments)) for name, arguments in ANSWER.calls]


class City(pydantic.BaseModel):
    """A city."""

    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(max_length=12)
    inhabitants: int = pydantic.Field(ge=0, le=10**8)
    coast: Literal["north", "south"] | None


@tool
def get_weather(city: str, days: int | None) -> str:
    """The weather of the next days."""
    return f"{days} days of rain in {city}"


@pytest.fixture
def chat(gateway_url: str) -> Callable[..., ChatOpenAI]:
    """The client that it makes itself is kept for other event loops, which are over."""
    where = {"base_url": f"{gateway_url}/v1", "api_key": "none", "timeout": STALL_S, "max_retries": 0}
    return lambda model, **fields: ChatOpenAI(
        model=model, http_async_client=openai.DefaultAsyncHttpxClient(), **where, **fields
    )


def called(message: Any) -> list[tuple[str, Any]]:
    return [(call["name"], call["args"]) for call in message.tool_calls]


async def total(stream: Any) -> AIMessageChunk:
    chunks = [chunk async for chunk in stream]
    assert len(chunks) > 3
    return sum(chunks[1:], chunks[0])


async def test_an_answer_whole_streamed_and_batched(chat, worker):
    model = chat(MODEL, max_tokens=6, temperature=0.5, seed=1, logprobs=True, top_logprobs=2)
    asked = [SystemMessage("be brief"), HumanMessage([{"type": "text", "text": "what?"}])]
    whole = await model.ainvoke(asked)
    assert whole.content == whole_text(6)
    assert whole.response_metadata["finish_reason"] == "length"
    assert len(whole.response_metadata["logprobs"]["content"]) == 6
    assert (whole.usage_metadata["output_tokens"], whole.usage_metadata["input_token_details"]) == (
        6,
        {"cache_read": 1},
    )

    streamed = await total(model.astream(asked, stream_usage=True))
    assert streamed.content == whole_text(6)
    assert streamed.usage_metadata == whole.usage_metadata

    batch = await model.abatch([asked] * 3)
    assert [message.content for message in batch] == [whole_text(6)] * 3


async def test_calls_whole_and_streamed(chat, start_model):
    start_model("hermes", ANSWER.text)
    model = chat("hermes").bind_tools(TOOLS)
    for message in (await model.ainvoke("What will it be like?"), await total(model.astream("What will it be like?"))):
        assert message.content == ANSWER.content
        assert called(message) == CALLS
        assert message.response_metadata["finish_reason"] == "tool_calls"


async def test_what_tools_found_is_answered(chat, start_model):
    start_model("hermes", ANSWER.text, reply="Take a coat.")
    model = chat("hermes").bind_tools([get_weather, TOOLS[1]])
    history = [HumanMessage("What will it be like?")]
    history.append(await model.ainvoke(history))
    first, second = history[1].tool_calls
    history += [await get_weather.ainvoke(first), ToolMessage("no news", tool_call_id=second["id"])]
    assert history[2].content == "3 days of rain in Rome"
    assert (await model.ainvoke(history)).content == "Take a coat."


@pytest.mark.parametrize("choice", ["any", "required", "City"])
async def test_a_call_that_must_be_made_is_made(chat, start_model, choice):
    start_model("hermes", "I would rather not.")
    model = chat("hermes", max_tokens=300)
    model = model.bind_tools([City], tool_choice=choice, strict=True, parallel_tool_calls=False)
    (call,) = (await model.ainvoke("What will it be like?")).tool_calls
    assert call["name"] == "City"
    City.model_validate(call["args"])


async def test_structured_output_by_a_call(chat, start_model):
    text = '<tool_call>\n{"name": "City", "arguments": {"name": "Oslo", "inhabitants": 7, "coast": null}}\n</tool_call>'
    start_model("hermes", text)
    model = chat("hermes").with_structured_output(City, method="function_calling")
    assert await model.ainvoke("a city") == City(name="Oslo", inhabitants=7, coast=None)


async def test_structured_output_by_json_mode(chat, start_model):
    start_model("hermes", '{"name":"Oslo","inhabitants":7,"coast":"south"}')
    model = chat("hermes").with_structured_output(City, method="json_mode")
    assert await model.ainvoke("a city, as JSON") == City(name="Oslo", inhabitants=7, coast="south")


async def test_structured_output_by_a_schema(demo_url):
    demo = ChatOpenAI(model="demo", base_url=f"{demo_url}/v1", api_key="none", temperature=1.0, max_tokens=400)
    found = await demo.with_structured_output(City, include_raw=True).ainvoke("a city")
    assert found["parsing_error"] is None
    assert isinstance(found["parsed"], City)
    pieces = [piece async for piece in demo.with_structured_output(City.model_json_schema()).astream("a city")]
    City.model_validate(pieces[-1])


async def test_completions(gateway_url, worker):
    model = OpenAI(model=MODEL, base_url=f"{gateway_url}/v1", api_key="none", max_tokens=5, temperature=0)
    assert await model.ainvoke("hello") == whole_text(5)
    assert "".join([piece async for piece in model.astream("hello")]) == whole_text(5)
    result = await model.agenerate(["one", "two", "three"])
    assert [generations[0].text for generations in result.generations] == [whole_text(5)] * 3


async def test_the_responses_api(chat, start_model):
    start_model("hermes", ANSWER.text, reply="Take a coat.")
    model = chat("hermes", use_responses_api=True, use_previous_response_id=True).bind_tools(TOOLS)
    history = [HumanMessage("What will it be like?")]
    streamed = await total(model.astream(history))
    whole = await model.ainvoke(history)
    for message in (whole, streamed):
        assert called(message) == CALLS
        assert message.text == ANSWER.content
    history += [whole, *(ToolMessage("rain", tool_call_id=call["id"]) for call in whole.tool_calls)]
    assert (await model.ainvoke(history)).text == "Take a coat."


async def test_an_error_says_what_is_wrong(chat, worker):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await chat(MODEL, temperature=9).ainvoke("hello")
