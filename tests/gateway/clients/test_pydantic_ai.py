"""pydantic-ai: agents that call tools, answer in types, think and stream, over chat completions and Responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest
from pydantic_ai import Agent, ModelHTTPError, ModelRetry, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.vllm import VLLMProvider
from tool_answers import ANSWERS
from waiting import STALL_S

pytestmark = pytest.mark.clients

ANSWER = ANSWERS["hermes"]
COMPACT = '{"name":"Oslo","inhabitants":7}'
MakeModel = Callable[[str], Any]


class City(pydantic.BaseModel):
    """A city."""

    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(max_length=12)
    inhabitants: int = pydantic.Field(ge=0, le=10**8)


@pytest.fixture(params=["chat", "responses"])
def model(request: pytest.FixtureRequest, ai: openai.AsyncOpenAI) -> MakeModel:
    kind = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[request.param]
    return lambda name: kind(name, provider=OpenAIProvider(openai_client=ai))


@pytest.fixture
def chat_model(ai: openai.AsyncOpenAI) -> MakeModel:
    return lambda name: OpenAIChatModel(name, provider=VLLMProvider(openai_client=ai))


def weather_agent(model: Any) -> tuple[Agent[None, str], list[tuple[Any, ...]]]:
    """An agent with the tools that the answers call, and its calls."""
    agent, calls = Agent(model, instructions="Be brief."), []

    @agent.tool_plain
    def get_weather(city: str, days: int | None) -> str:
        calls.append(("get_weather", city, days))
        return "rain"

    @agent.tool_plain(name="get-news")
    def get_news(city: str, days: int | None) -> dict[str, Any]:
        calls.append(("get-news", city, days))
        return {"news": []}

    return agent, calls


def parts(messages: list[Any], kind: type) -> list[Any]:
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


def thought(part: ThinkingPart) -> str:
    """A Response's is no summary, which would be the content of the part."""
    return part.content or "".join(part.provider_details["raw_content"])


async def test_an_agent_calls_tools_and_answers(model, start_model):
    start_model("hermes", ANSWER.text, reply="<think>\nRain.\n</think>\n\nTake a coat.")
    agent, calls = weather_agent(model("hermes"))
    result = await agent.run("What will it be like?")
    assert result.output == "Take a coat."
    assert sorted(calls, reverse=True) == [
        (name, *json.loads(arguments).values()) for name, arguments in sorted(ANSWER.calls, reverse=True)
    ]
    messages = result.all_messages()
    assert list(map(thought, parts(messages, ThinkingPart))) == [ANSWER.reasoning, "Rain."]
    called, returned = parts(messages, ToolCallPart), parts(messages, ToolReturnPart)
    assert [part.tool_call_id for part in called] == [part.tool_call_id for part in returned]
    assert result.usage.requests == 2
    assert result.usage.output_tokens > 50

    again = await agent.run("And then?", message_history=messages)
    assert again.output == "Take a coat."


async def test_an_agent_streams(model, start_model):
    answer = "Take a coat, and a second one for the evening."
    # a run that streams ends with the first text, also if calls follow it: so this one only calls
    start_model("hermes", ANSWER.text.replace(ANSWER.content, ""), reply=answer)
    agent, calls = weather_agent(model("hermes"))
    async with agent.run_stream("What will it be like?") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == answer
    assert len(pieces) > 1
    assert len(calls) == 2


async def test_events_of_a_run(model, start_model):
    start_model("hermes", ANSWER.text, reply="Take a coat.")
    agent, calls = weather_agent(model("hermes"))
    async with agent.run_stream_events("What will it be like?") as stream:
        kinds = [event.event_kind async for event in stream]
    assert kinds.count("function_tool_call") == kinds.count("function_tool_result") == len(calls) == 2
    assert kinds[-1] == "agent_run_result"
    assert kinds.count("part_delta") > 5


async def test_an_answer_by_a_call(model, start_model):
    start_model(
        "hermes", '<tool_call>\n{"name": "final_result", "arguments": {"name": "Oslo", "inhabitants": 7}}\n</tool_call>'
    )
    result = await Agent(model("hermes"), output_type=ToolOutput(City)).run("a city")
    assert result.output == City(name="Oslo", inhabitants=7)


@pytest.mark.parametrize("kind", [NativeOutput, PromptedOutput])
async def test_an_answer_by_a_schema(model, start_model, kind):
    start_model("hermes", COMPACT)
    agent = Agent(model("hermes"), output_type=kind(City))
    assert (await agent.run("a city")).output == City(name="Oslo", inhabitants=7)
    async with agent.run_stream("a city") as result:
        assert await result.get_output() == City(name="Oslo", inhabitants=7)


async def test_an_answer_that_is_invalid_is_asked_for_again(chat_model, start_model):
    def call(name: str) -> str:
        city = json.dumps({"name": name, "inhabitants": 7})
        return f'<tool_call>\n{{"name": "final_result", "arguments": {city}}}\n</tool_call>'

    start_model("hermes", call("oslo"), reply=call("Oslo"))
    agent = Agent(chat_model("hermes"), output_type=ToolOutput(City))

    @agent.output_validator
    def capitalised(city: City) -> City:
        if not city.name.istitle():
            raise ModelRetry("a name begins with a capital letter")
        return city

    result = await agent.run("a city")
    assert (result.output.name, result.usage.requests) == ("Oslo", 2)


async def test_settings_reach_the_model(model, start_model):
    start_model("hermes", "<think>\nRain.\n</think>\n\nTake a coat.")
    settings = {"temperature": 0.2, "top_p": 0.9, "max_tokens": 200, "seed": 5, "timeout": STALL_S, "thinking": "low"}
    for extra in ({}, {"parallel_tool_calls": False}, {"thinking": False}):
        result = await Agent(model("hermes")).run("hello", model_settings={**settings, **extra})
        assert result.output == "Take a coat."


async def test_an_error_has_its_status(model, start_model):
    start_model("hermes", "hello")
    with pytest.raises(ModelHTTPError) as refused:
        await Agent(model("hermes")).run("hello", model_settings={"temperature": 9})
    assert refused.value.status_code == 400


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
async def test_a_real_model_keeps_to_a_schema(demo_url, kind):
    async with openai.AsyncOpenAI(base_url=f"{demo_url}/v1", api_key="none", max_retries=0, timeout=STALL_S) as ai:
        agent = Agent(
            kind("demo", provider=OpenAIProvider(openai_client=ai)), output_type=NativeOutput(City), retries=0
        )
        result = await agent.run("a city", model_settings={"temperature": 1.0})
        assert isinstance(result.output, City)
