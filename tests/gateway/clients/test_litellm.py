"""litellm: its `openai`, `hosted_vllm` and `anthropic` providers, and its Responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import litellm
import pydantic
import pytest
from clerks import CHAT, encoded, line, working
from scripted_worker import MODEL, ScriptedWorker, whole_text
from serving import serving
from tool_answers import ANSWERS, TOOLS
from waiting import STALL_S

from octavo_gateway.settings import GatewaySettings

pytestmark = pytest.mark.clients

ASKED = [{"role": "user", "content": "What will it be like?"}]
ANSWER = ANSWERS["hermes"]


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(max_length=12)
    inhabitants: int = pydantic.Field(ge=0, le=10**8)


@pytest.fixture(params=["openai", "hosted_vllm"])
def ask(request: pytest.FixtureRequest, gateway_url: str) -> Callable[..., Any]:
    """`acompletion` of a model of the gateway."""

    def ask(model: str, **fields: Any) -> Any:
        where = {"api_base": f"{gateway_url}/v1", "api_key": "none", "timeout": STALL_S, "num_retries": 0}
        return litellm.acompletion(f"{request.param}/{model}", **{"messages": ASKED, **where, **fields})

    return ask


def said(message: Any) -> tuple[Any, ...]:
    calls = tuple((call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ())
    return message.content, getattr(message, "reasoning_content", None), calls


EXPECTED = (ANSWER.content, ANSWER.reasoning, tuple((name, json.loads(text)) for name, text in ANSWER.calls))


async def test_an_answer_whole_and_streamed(ask, worker):
    whole = await ask(MODEL, max_tokens=6, logprobs=True, top_logprobs=2, seed=3, user="somebody")
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason) == (whole_text(6), "length")
    assert [len(token.top_logprobs) for token in choice.logprobs.content] == [2] * 6
    assert (whole.usage.completion_tokens, whole.usage.prompt_tokens_details.cached_tokens) == (6, 1)

    stream = await ask(MODEL, max_tokens=6, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole_text(6)
    built = litellm.stream_chunk_builder(chunks, messages=ASKED)
    assert built.choices[0].finish_reason == "length"
    assert built.usage.completion_tokens == 6
    assert built.usage.prompt_tokens == whole.usage.prompt_tokens


async def test_calls_and_thoughts_whole_and_streamed(ask, start_model):
    start_model("hermes", ANSWER.text)
    whole = await ask("hermes", tools=TOOLS, tool_choice="auto", parallel_tool_calls=True)
    assert whole.choices[0].finish_reason == "tool_calls"
    assert said(whole.choices[0].message) == EXPECTED

    chunks = [chunk async for chunk in await ask("hermes", tools=TOOLS, stream=True)]
    built = litellm.stream_chunk_builder(chunks, messages=ASKED)
    assert built.choices[0].finish_reason == "tool_calls"
    assert said(built.choices[0].message) == EXPECTED


async def test_the_results_of_calls_are_answered(ask, start_model):
    start_model("hermes", ANSWER.text, reply="It will rain.")
    history = [*ASKED]
    message = (await ask("hermes", tools=TOOLS)).choices[0].message
    history += [message, *({"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls)]
    again = (await ask("hermes", messages=history, tools=TOOLS)).choices[0]
    assert (again.message.content, again.finish_reason) == ("It will rain.", "stop")


async def test_what_is_marked_for_a_cache_is_cached_anyway(ask, worker):
    marked = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
    answer = await ask(MODEL, messages=[{"role": "system", "content": [marked]}, *ASKED], max_tokens=3)
    assert answer.choices[0].message.content == whole_text(3)
    points = [{"location": "message", "role": "user"}]
    answer = await ask(MODEL, cache_control_injection_points=points, max_tokens=3)
    assert answer.choices[0].message.content == whole_text(3)


async def test_errors_are_those_of_the_cause(ask, start_model):
    start_model("hermes", ANSWER.text)
    with pytest.raises(litellm.ContextWindowExceededError):
        await ask("hermes", messages=[{"role": "user", "content": "one two " * 1000}])
    with pytest.raises(litellm.NotFoundError):
        await ask("nobody")
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        await ask("hermes", temperature=7)


async def test_a_router_goes_on_to_the_model_that_is_there(gateway_url, worker):
    where = {"api_base": f"{gateway_url}/v1", "api_key": "none"}
    models = [
        {"model_name": name, "litellm_params": {"model": f"openai/{model}", **where}}
        for name, model in (("first", "nobody"), ("second", MODEL))
    ]
    router = litellm.Router(models, fallbacks=[{"first": ["second"]}], num_retries=0)
    answer = await router.acompletion("first", messages=ASKED, max_tokens=3)
    assert answer.choices[0].message.content == whole_text(3)


async def test_completions(gateway_url, worker):
    ask = partial(litellm.atext_completion, api_base=f"{gateway_url}/v1", api_key="none")
    answer = await ask(model=f"text-completion-openai/{MODEL}", prompt="hello", max_tokens=4, logprobs=1, echo=True)
    assert answer.choices[0].text == "hello" + whole_text(4)
    assert answer.choices[0].logprobs.token_logprobs[0] is None


async def test_responses_with_calls(gateway_url, start_model):
    start_model("hermes", ANSWER.text)
    where = {"api_base": f"{gateway_url}/v1", "api_key": "none"}
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    answer = await litellm.aresponses("asked", "openai/hermes", tools=tools, **where)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    events = [event async for event in await litellm.aresponses("asked", "openai/hermes", stream=True, **where)]
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    thought, message = events[-1].response.output
    # litellm leaves out the events of thoughts, which it does not know
    assert thought.content[0].text == ANSWER.reasoning
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == message.content[0].text


async def test_a_schema_holds(demo_url):
    for provider in ("openai", "hosted_vllm"):
        answer = await litellm.acompletion(
            f"{provider}/demo",
            messages=ASKED,
            response_format=City,
            temperature=1.0,
            api_base=f"{demo_url}/v1",
            api_key="none",
        )
        City.model_validate_json(answer.choices[0].message.content)


async def test_messages_with_calls(gateway_url, start_model):
    start_model("hermes", ANSWER.text, reply="Take a coat.")
    where = {"api_base": gateway_url, "api_key": "none", "timeout": STALL_S, "max_tokens": 400, "tools": TOOLS}
    ask = partial(litellm.acompletion, "anthropic/hermes", **where)
    whole = (await ask(messages=ASKED)).choices[0]
    assert (said(whole.message), whole.finish_reason) == (EXPECTED, "tool_calls")
    chunks = [chunk async for chunk in await ask(messages=ASKED, stream=True)]
    streamed = litellm.stream_chunk_builder(chunks, messages=ASKED).choices[0]
    assert said(streamed.message) == EXPECTED
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in whole.message.tool_calls]
    answered = await ask(messages=[*ASKED, whole.message.model_dump(), *results])
    assert answered.choices[0].message.content == "Take a coat."


async def test_a_batch_from_its_file_to_its_answers(redis_url: str, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(encoded(*(line(f"{number}", url=CHAT) for number in range(5)), line("wrong", url=CHAT, n=0)))
    settings = GatewaySettings(redis_url=redis_url, files=str(tmp_path / "files"))
    with serving(settings) as url:
        where: dict[str, Any] = {"custom_llm_provider": "openai", "api_base": f"{url}/v1", "api_key": "none"}
        async with ScriptedWorker(redis_url), working(redis_url, tmp_path / "files"), asyncio.timeout(STALL_S):
            with source.open("rb") as opened:
                file = await litellm.acreate_file(file=opened, purpose="batch", **where)
            asked: dict[str, Any] = {"completion_window": "24h", "endpoint": CHAT, "input_file_id": file.id}
            batch = await litellm.acreate_batch(**asked, metadata={"a": "b"}, **where)
            listed = await litellm.alist_batches(limit=5, **where)
            assert [one.id for one in listed.data] == [batch.id]
            while batch.status != "completed":
                await asyncio.sleep(0.05)
                batch = await litellm.aretrieve_batch(batch_id=batch.id, **where)
            counts = batch.request_counts
            assert (counts.total, counts.completed, counts.failed, batch.metadata) == (6, 5, 1, {"a": "b"})
            done = await litellm.afile_content(file_id=batch.output_file_id, **where)
            answers = [json.loads(text) for text in done.content.splitlines()]
            assert sorted(one["custom_id"] for one in answers) == ["0", "1", "2", "3", "4"]
            texts = {one["response"]["body"]["choices"][0]["message"]["content"] for one in answers}
            assert texts == {whole_text(3)}
            failed = await litellm.afile_content(file_id=batch.error_file_id, **where)
            assert json.loads(failed.content)["response"]["status_code"] == 400
