"""Tools and thoughts, as the `openai` package sees them: the real agent with a template of every family, on an engine
that says what such a model would."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any

import openai
import pytest
from chat_templates import FAMILIES
from pydantic import BaseModel
from tool_answers import ANSWERS, ROME, TOOLS, ToolAnswer
from waiting import STALL_S, until
from worker_process import WorkerProcess

from octavo.cli.batch import run as run_batch
from octavo.client.asynchronous import AsyncClient
from octavo.dialects.answer_parser import AnswerParser
from octavo.terms.tools import Tool

ASKED = [{"role": "user", "content": "What will it be like?"}]
StartModel = Callable[..., WorkerProcess]


def said(message: Any) -> tuple[str | None, str | None, list[tuple[str, Any]]]:
    """Content, reasoning and calls of a message."""
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    return message.content, getattr(message, "reasoning_content", None), calls


def expected(answer: ToolAnswer) -> tuple[str | None, str | None, list[tuple[str, Any]]]:
    return answer.content, answer.reasoning, [(name, json.loads(arguments)) for name, arguments in answer.calls]


async def streamed(ai: Any, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """The sum of a stream's deltas as a message with a finish reason, and its chunks."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": [], "finish_reason": None}
    chunks = []
    async for chunk in await ai.chat.completions.create(messages=ASKED, stream=True, **fields):
        chunks.append(chunk)
        for choice in chunk.choices:
            delta = choice.delta
            message["content"] += delta.content or ""
            message["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                if call.function.name is not None:
                    assert call.index == len(message["tool_calls"])
                    assert call.type == "function"
                    message["tool_calls"].append({"id": call.id, "name": call.function.name, "arguments": ""})
                message["tool_calls"][call.index]["arguments"] += call.function.arguments or ""
            message["finish_reason"] = choice.finish_reason or message["finish_reason"]
    return message, chunks


@pytest.mark.full(but=4)
@pytest.mark.parametrize("name", FAMILIES)
async def test_a_model_of_every_family_calls_tools(ai, start_model, name):
    answer = ANSWERS[name]
    start_model(name, answer.text)
    reply = await ai.chat.completions.create(model=name, messages=ASKED, tools=TOOLS, max_tokens=400)
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert said(choice.message) == expected(answer)

    message, chunks = await streamed(ai, model=name, tools=TOOLS, max_tokens=400)
    assert message["finish_reason"] == "tool_calls"
    assert message["content"] == (answer.content or "")
    assert message["reasoning_content"] == (answer.reasoning or "")
    calls = [(call["name"], json.loads(call["arguments"])) for call in message["tool_calls"]]
    assert calls == expected(answer)[2]
    assert len(chunks) > 4, "it comes in pieces"
    assert len({call["id"] for call in message["tool_calls"]}) == 2

    # the answer goes back as it came, with what the tools found
    history = [
        *ASKED,
        choice.message.model_dump(),
        *({"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in choice.message.tool_calls),
    ]
    if name in ("llama3_json", "harmony"):  # their templates take one call a turn
        history[1]["tool_calls"] = history[1]["tool_calls"][:1]
    again = await ai.chat.completions.create(model=name, messages=history, tools=TOOLS, max_tokens=3)
    assert again.usage.prompt_tokens > reply.usage.prompt_tokens


async def disturbed(ai: Any, redis_url: str, start_model: StartModel, name: str, text: str, **fields: Any) -> Any:
    """A stream of one worker, and one of which that worker is killed after 25 tokens and another goes on."""
    first = start_model(name, text, step_seconds=0.02)
    undisturbed, _ = await streamed(ai, model=name, max_tokens=400, **fields)
    streaming = asyncio.create_task(streamed(ai, model=name, max_tokens=400, **fields))
    async with AsyncClient(redis_url) as client:

        async def is_inside() -> bool:
            (job, *_) = await client.jobs(limit=1)
            return job.status == "running" and job.tokens > 25

        await until(is_inside)
        first.send(signal.SIGKILL)
        start_model(name, text, number=1)
        message, _ = await streaming
        (job, *_) = await client.jobs(limit=1)
        assert job.attempts == 2
    return undisturbed, message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Ids are those of a job."""
    return {**message, "tool_calls": [{**call, "id": None} for call in message["tool_calls"]]}


@pytest.mark.full
@pytest.mark.parametrize("name", ["hermes", "harmony", "qwen3_coder"])
async def test_a_worker_that_is_killed_inside_a_call_is_not_noticed(ai, start_model, redis_url, name):
    undisturbed, message = await disturbed(ai, redis_url, start_model, name, ANSWERS[name].text, tools=TOOLS)
    assert len(message["tool_calls"]) == 2
    assert without_ids(message) == without_ids(undisturbed)


THOUGHT = "<think>" + "one two three four five six seven eight nine ten " * 3 + "</think>And so?"


async def test_a_thought_is_closed_when_its_budget_is_used_up(ai, start_model):
    start_model("hermes", THOUGHT)
    whole, _ = await streamed(ai, model="hermes", max_tokens=300)
    assert whole["content"] == "And so?"
    replies = {}
    for budget in (0, 1, 7, 10_000):
        reply, chunks = await streamed(
            ai,
            model="hermes",
            max_tokens=300,
            extra_body={"thinking_token_budget": budget},
            stream_options={"include_usage": True},
        )
        replies[budget] = reply
        assert chunks[-1].usage.completion_tokens > 30
    assert replies[10_000] == whole
    assert replies[0]["reasoning_content"] == ""
    assert whole["reasoning_content"].startswith(replies[7]["reasoning_content"])
    assert 0 < len(replies[1]["reasoning_content"]) < len(replies[7]["reasoning_content"]) < 40
    assert all(reply["content"].endswith("And so?") for reply in replies.values())


async def test_a_budget_holds_for_every_sequence_and_keeps_log_probabilities_whole(ai, start_model):
    start_model("hermes", THOUGHT)
    reply = await ai.chat.completions.create(
        model="hermes",
        messages=ASKED,
        n=3,
        max_tokens=50,
        logprobs=True,
        extra_body={"thinking_token_budget": 5},
    )
    assert len({choice.message.reasoning_content for choice in reply.choices}) == 1
    assert [len(choice.logprobs.content) for choice in reply.choices] == [50, 50, 50]
    closing = [item.logprob for item in reply.choices[0].logprobs.content if item.token == "</think>"]
    assert closing[0] == 0.0


async def test_a_thought_that_is_cut_at_the_limit_stays_within_it(ai, start_model):
    start_model("harmony", ANSWERS["harmony"].text)
    for limit in range(4, 14):
        reply = await ai.chat.completions.create(
            model="harmony", messages=ASKED, max_tokens=limit, extra_body={"thinking_token_budget": 2}
        )
        assert reply.usage.completion_tokens == limit
        assert reply.choices[0].finish_reason == "length"


async def test_a_takeover_closes_a_thought_where_the_first_worker_would_have(ai, start_model, redis_url):
    fields = {"extra_body": {"thinking_token_budget": 40}}
    undisturbed, message = await disturbed(ai, redis_url, start_model, "hermes", THOUGHT, **fields)
    assert message == undisturbed
    assert 0 < len(message["reasoning_content"]) < len(THOUGHT) - 40


async def test_a_stop_string_acts_on_the_answer_alone(ai, http, start_model):
    start_model("hermes", "<think>First STOP and think.</think>It is 42, STOP.")
    asked = {"model": "hermes", "messages": ASKED, "max_tokens": 200, "stop": ["STOP"]}
    reply = (await ai.chat.completions.create(**asked, tools=TOOLS)).choices[0]
    assert (reply.finish_reason, said(reply.message)) == ("stop", ("It is 42, ", "First STOP and think.", []))
    message, chunks = await streamed(ai, model="hermes", max_tokens=200, stop=["STOP"], logprobs=True)
    assert (message["content"], message["finish_reason"]) == ("It is 42, ", "stop")
    told = [item for chunk in chunks if (found := chunk.choices[0].logprobs) for item in found.content]
    assert b"".join(bytes(item.bytes) for item in told).decode().endswith("think.</think>It is 42, ")
    prompt = {"model": "hermes", "prompt": "?", "max_tokens": 200, "stop": ["STOP"]}
    assert (await ai.completions.create(**prompt)).choices[0].text == "<think>First "
    body = {"model": "hermes", "messages": ASKED, "max_tokens": 200, "stop_sequences": ["STOP"]}
    told = (await http.post("/v1/messages", json=body)).json()
    assert [block.get("text") or block.get("thinking") for block in told["content"]] == [
        "First STOP and think.",
        "It is 42, ",
    ]
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "STOP")


async def test_what_is_said_of_reasoning_reaches_the_template_and_the_answer(ai, start_model):
    start_model("deepseek_v3_1", "Rome, then.</think>Let me see.")

    async def answer(**fields: Any) -> tuple[str | None, str | None]:
        reply = await ai.chat.completions.create(model="deepseek_v3_1", messages=ASKED, **fields)
        return said(reply.choices[0].message)[:2]

    thinking = {"chat_template_kwargs": {"thinking": True}}
    assert await answer(extra_body=thinking) == ("Let me see.", "Rome, then.")
    assert await answer(extra_body={**thinking, "include_reasoning": False}) == ("Let me see.", None)
    assert await answer() == ("Rome, then.</think>Let me see.", None)
    assert await answer(extra_body=thinking, reasoning_effort="none") == ("Let me see.", "Rome, then.")


async def test_parallel_calls_can_be_refused(ai, start_model):
    start_model("hermes", ANSWERS["hermes"].text)
    reply = await ai.chat.completions.create(
        model="hermes", messages=ASKED, tools=TOOLS, parallel_tool_calls=False, max_tokens=400
    )
    message, _ = await streamed(ai, model="hermes", tools=TOOLS, parallel_tool_calls=False, max_tokens=400)
    assert len(reply.choices[0].message.tool_calls) == len(message["tool_calls"]) == 1


async def test_a_call_that_is_cut_off_says_length(ai, start_model):
    start_model("mistral", ANSWERS["mistral"].text)
    reply = await ai.chat.completions.create(model="mistral", messages=ASKED, tools=TOOLS, max_tokens=50)
    (choice,) = reply.choices
    assert choice.finish_reason == "length"
    assert len(choice.message.tool_calls) == 1
    assert ROME.startswith(choice.message.tool_calls[0].function.arguments)


class Weather(BaseModel):
    city: str
    days: int


async def test_the_packages_own_helpers_read_calls(ai, start_model):
    call = f'<tool_call>\n{{"name": "Weather", "arguments": {ROME}}}\n</tool_call>'
    start_model("hermes", call)
    tool = openai.pydantic_function_tool(Weather)
    reply = await ai.chat.completions.parse(model="hermes", messages=ASKED, tools=[tool], max_tokens=200)
    assert reply.choices[0].message.tool_calls[0].function.parsed_arguments == Weather(city="Rome", days=3)
    events = []
    async with ai.chat.completions.stream(model="hermes", messages=ASKED, tools=[tool], max_tokens=200) as stream:
        async for event in stream:
            events.append(event.type)
        final = await stream.get_final_completion()
    assert events.count("tool_calls.function.arguments.done") == 1
    assert events.count("tool_calls.function.arguments.delta") > 2
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments == Weather(city="Rome", days=3)


async def test_a_batch_and_the_client_give_the_same_calls(ai, start_model, redis_url, tmp_path):
    answer = ANSWERS["glm4"]
    start_model("glm4", answer.text)
    body = {"model": "glm4", "messages": ASKED, "tools": TOOLS, "max_tokens": 400}
    plain = {**body, "custom_id": "plain"}
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    line = {"custom_id": "openai", "method": "POST", "url": "/v1/chat/completions", "body": body}
    source.write_text(f"{json.dumps(line)}\n{json.dumps(plain)}\n")
    await asyncio.to_thread(
        run_batch, source, target, model="x", window=9, tenant="default", redis_url=redis_url, as_json=False
    )
    for text in target.read_text().splitlines():
        (choice,) = json.loads(text)["response"]["body"]["choices"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
        assert [(tool, json.loads(arguments)) for tool, arguments in calls] == expected(answer)[2]
        assert choice["finish_reason"] == "tool_calls"
    async with AsyncClient(redis_url) as client:
        job = await client.submit(messages=ASKED, model="glm4", tools=TOOLS, max_tokens=400)
        result = await job.result(timeout=STALL_S)
    parsed = AnswerParser(job.id, [Tool.model_validate(tool) for tool in TOOLS]).parse_result(result)
    assert [(call.name, json.loads(call.arguments)) for call in parsed[0].calls] == expected(answer)[2]


async def test_a_model_without_tools_says_so(ai, start_model):
    start_model("plain", "hello")
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.chat.completions.create(model="plain", messages=ASKED, tools=TOOLS)
    assert refused.value.param == "tools"
    assert "takes no tools" in refused.value.message


ENUMERATED = {
    "type": "function",
    "function": {
        "name": "choose",
        "parameters": {
            "type": "object",
            "properties": {
                "size": {"enum": ["small", "large"]},
                "count": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["size", "count"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", FAMILIES)
async def test_a_call_that_is_required_is_made_whatever_the_model_would_say(ai, start_model, name):
    start_model(name, "I would rather not")
    for choice in ("required", {"type": "function", "function": {"name": "choose"}}):
        reply = await ai.chat.completions.create(
            model=name,
            messages=ASKED,
            tools=[ENUMERATED],
            tool_choice=choice,
            parallel_tool_calls=False,
            max_tokens=300,
            extra_body={"thinking_token_budget": 3, "chat_template_kwargs": {"enable_thinking": False}},
        )
        (answer,) = reply.choices
        assert answer.finish_reason == "tool_calls", answer
        (call,) = answer.message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "choose"
        assert arguments["size"] in ("small", "large")
        assert arguments["count"] in range(1, 10)


async def test_a_model_may_speak_where_a_strict_tool_waits(ai, start_model):
    start_model("hermes", "I would rather not")
    strict = {**ENUMERATED, "function": {**ENUMERATED["function"], "strict": True}}
    reply = await ai.chat.completions.create(model="hermes", messages=ASKED, tools=[strict], max_tokens=200)
    assert reply.choices[0].message.content == "I would rather not"


async def test_a_strict_tool_gets_the_arguments_that_it_allows(ai, start_model):
    wrong = (
        '<tool_call>\n{"name": "choose", "arguments": {"size": "medium", "count": 12, "colour": "red"}}\n</tool_call>'
    )
    start_model("hermes", wrong)
    loose = await ai.chat.completions.create(model="hermes", messages=ASKED, tools=[ENUMERATED], max_tokens=200)
    assert json.loads(loose.choices[0].message.tool_calls[0].function.arguments)["size"] == "medium"
    strict = {**ENUMERATED, "function": {**ENUMERATED["function"], "strict": True}}
    reply = await ai.chat.completions.create(
        model="hermes", messages=ASKED, tools=[strict], parallel_tool_calls=False, max_tokens=200
    )
    arguments = json.loads(reply.choices[0].message.tool_calls[0].function.arguments)
    assert arguments["size"] in ("small", "large")
    assert set(arguments) == {"size", "count"}


async def test_structured_content_comes_behind_a_thought(ai, start_model):
    start_model("glm4", '<think>Rome, then.</think>\n{"city":"Rome","days":3}')
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": TOOLS[0]["function"]["parameters"]}}
    reply = await ai.chat.completions.create(model="glm4", messages=ASKED, response_format=schema, max_tokens=200)
    assert said(reply.choices[0].message) == ('{"city":"Rome","days":3}', "Rome, then.", [])


async def test_a_schema_that_cannot_be_obeyed_is_refused_with_its_place(ai, start_model):
    start_model("hermes", "hello")
    bad = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "strin"}}}}
    for fields in ({"tool_choice": "required"}, {"strict": True}):
        tool = {"type": "function", "function": {**bad, "strict": fields.pop("strict", False)}}
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.chat.completions.create(model="hermes", messages=ASKED, tools=[tool], **fields)
        assert refused.value.param == "tools.0.function.parameters"
        assert "strin" in refused.value.message
    await ai.chat.completions.create(
        model="hermes", messages=ASKED, tools=[{"type": "function", "function": bad}], max_tokens=3
    )
