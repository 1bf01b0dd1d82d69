"""Answers that begin with the last message of the request, as the real clients ask for them."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import anthropic
import httpx
import openai
import pytest
from scripted_worker import MODEL
from tool_answers import ANSWERS, TOOLS
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.cli.batch import run as run_batch

BEGUN = [{"role": "user", "content": "What is 6 * 7?"}, {"role": "assistant", "content": "The answer is"}]
GOES_ON = {"continue_final_message": True, "add_generation_prompt": False}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CHAT_TOOL = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest.fixture
def claude(gateway_url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=gateway_url, api_key="none", max_retries=0, timeout=STALL_S)


async def test_a_chat_goes_on_and_answers_with_the_rest_alone(ai, http, worker):
    asked = {"model": MODEL, "messages": BEGUN, "max_tokens": 3}
    reply = await ai.chat.completions.create(**asked, extra_body=GOES_ON)
    assert reply.choices[0].message.content == " 0.0 0.1 0.2"
    for body in (GOES_ON, {"continue_final_message": True}):
        assert (await http.post("/v1/chat/completions", json={**asked, **body})).status_code == 200
    for neutral in ({}, {"continue_final_message": False, "add_generation_prompt": True}):
        assert (await http.post("/v1/chat/completions", json={**asked, **neutral})).status_code == 200
    assert [request.continue_final_message for request in worker.seen] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"add_generation_prompt": True}, "add_generation_prompt"),
        ({"continue_final_message": False}, "continue_final_message"),
        ({"messages": BEGUN[:1]}, "assistant's"),
        ({"response_format": SCHEMA}, "response_format"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"tools": [CHAT_TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "strict tools"),
    ],
)
async def test_a_chat_names_what_does_not_go_together(http, worker, fields, named):
    reply = await http.post("/v1/chat/completions", json={"model": MODEL, "messages": BEGUN, **GOES_ON, **fields})
    assert reply.status_code == 400
    assert named in reply.json()["error"]["message"]
    assert worker.seen == []


async def test_messages_go_on_behind_the_assistants_last(claude, worker):
    asked = {"model": MODEL, "max_tokens": 2}
    message = await claude.messages.create(**asked, messages=BEGUN)
    assert [block.text for block in message.content] == [" 0.0 0.1"]
    blocks = [{"type": "text", "text": "So"}, {"type": "text", "text": ":"}]
    async with claude.messages.stream(
        **asked, messages=[BEGUN[0], {"role": "assistant", "content": blocks}], tools=[TOOL]
    ) as stream:
        assert await stream.get_final_text() == " 0.0 0.1"
    thinking = [{"type": "thinking", "thinking": "hm", "signature": "s"}, blocks[0]]
    await claude.messages.create(
        **{**asked, "max_tokens": 2048},
        messages=[BEGUN[0], {"role": "assistant", "content": thinking}],
        thinking={"type": "enabled", "budget_tokens": 1024},
        extra_body={"stop_sequences": ["0.1"]},
    )
    await claude.messages.create(**asked, messages=[BEGUN[0], {"role": "assistant", "content": ""}])
    await claude.messages.create(**asked, messages=[*BEGUN, BEGUN[0]])
    told = [(request.continue_final_message, request.messages[-1].text) for request in worker.seen]
    asked_last = (False, BEGUN[0]["content"])
    assert told == [(True, "The answer is"), (True, "So:"), (True, "So"), asked_last, asked_last]


@pytest.mark.parametrize(
    ("final", "fields", "said"),
    [
        ("So: ", {}, "cannot end with trailing whitespace"),
        ([{"type": "text", "text": "So\n"}], {}, "cannot end with trailing whitespace"),
        (" \n", {}, "cannot end with trailing whitespace"),
        ("So", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ("So", {"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice any"),
        ("So", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice tool"),
        ("So", {"tools": [{**TOOL, "strict": True}]}, "strict tools"),
        ([{"type": "tool_use", "id": "t", "name": "f", "input": {}}], {"tools": [TOOL]}, "tool_result"),
    ],
)
async def test_messages_say_why_the_last_cannot_be_continued(claude, worker, final, fields, said):
    messages = [BEGUN[0], {"role": "assistant", "content": final}]
    with pytest.raises(anthropic.BadRequestError, match=said):
        await claude.messages.create(model=MODEL, max_tokens=2, messages=messages, **fields)
    assert worker.seen == []


async def test_tokens_are_counted_up_to_where_the_answer_goes_on(http, start_model):
    start_model("hermes", "x")
    shared = {"model": "hermes", "messages": BEGUN}

    async def prompt(**fields: Any) -> tuple[str, int]:
        tokens = (await http.post("/tokenize", json={**shared, **fields})).json()["tokens"]
        return (await http.post("/detokenize", json={"model": "hermes", "tokens": tokens})).json()["prompt"], len(
            tokens
        )

    text, count = await prompt(**GOES_ON)
    assert text.endswith("<|im_start|>assistant\nThe answer is")
    assert (await prompt())[0].endswith("The answer is<|im_end|>\n<|im_start|>assistant\n")
    counted = await http.post("/v1/messages/count_tokens", json=shared)
    assert counted.json() == {"input_tokens": count}
    for body in ({"prompt": "a", **GOES_ON}, {**shared, **GOES_ON, "add_generation_prompt": True}):
        assert (await http.post("/tokenize", json=body)).status_code == 400
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    body = {**shared, "messages": [BEGUN[0], called], "tools": [TOOL]}
    assert (await http.post("/v1/messages/count_tokens", json=body)).status_code == 200


async def test_lines_of_a_batch_go_on(http, worker, redis_url, tmp_path):
    plain = {"messages": BEGUN, "continue_final_message": True, "max_tokens": 2}
    body = {"model": MODEL, "messages": BEGUN, "max_tokens": 2, **GOES_ON}
    lines = [plain, {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": body}]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    await asyncio.to_thread(run_batch, source, target, model=MODEL, redis_url=redis_url)
    answers = [json.loads(line)["response"]["body"]["choices"][0] for line in target.read_text().splitlines()]
    assert [answer["message"]["content"] for answer in answers] == [" 0.0 0.1"] * 2
    assert [request.continue_final_message for request in worker.seen] == [True, True]


@pytest.mark.full
async def test_a_worker_that_is_killed_in_mid_answer_is_not_noticed(
    ai: openai.AsyncOpenAI, http: httpx.AsyncClient, redis_url: str, start_model: Any
) -> None:
    """The rest has a call in it, behind a thought that the request began."""
    text = "so it is, and so it will be.</think>I look." + ANSWERS["hermes"].text
    messages = [BEGUN[0], {"role": "assistant", "content": "<think>\nWell, "}]
    fields = {"model": "hermes", "messages": messages, "tools": TOOLS, "max_tokens": 400, "extra_body": GOES_ON}
    first = start_model("hermes", text, step_seconds=0.02)
    whole = (await ai.chat.completions.create(**fields)).choices[0]
    assert whole.message.model_extra["reasoning_content"] == "so it is, and so it will be."
    assert whole.message.content.startswith("I look.")
    asking = asyncio.create_task(ai.chat.completions.create(**fields))
    async with AsyncClient(redis_url) as client:

        async def is_inside() -> bool:
            (job, *_) = await client.jobs(limit=1)
            return job.status == "running" and job.tokens > 25

        await until(is_inside)
        first.send(signal.SIGKILL)
        start_model("hermes", text, number=1)
        again = (await asking).choices[0]
        (job, *_) = await client.jobs(limit=1)
    assert job.attempts == 2
    for message in (whole.message, again.message):
        for call in message.tool_calls or ():
            call.id = ""
    assert again == whole
