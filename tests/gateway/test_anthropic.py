"""Anthropic's Messages API, through the real client of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_worker import MODEL, ScriptedWorker, whole_text
from sse import read_events
from tool_answers import ANSWERS, TOOLS
from waiting import STALL_S, until
from worker_process import WorkerProcess

from octavo import AsyncClient
from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.anthropic.body import MessagesRequest
from octavo.dialects.anthropic.events import MessageEvents, whole_message
from octavo.terms.messages import AnswerFormat, Chunk, JobStatus, Usage

HI: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def claude(gateway_url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway_url, api_key="none", max_retries=0, timeout=STALL_S) as client:
        yield client


async def test_a_message(claude, worker):
    chosen = {"temperature": 0.5, "top_k": 3, "top_p": 0.9}
    message = await claude.messages.create(**HI, system="be brief", extra_body=chosen)
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert message.id.startswith("msg_g00_")
    assert [(block.type, block.text) for block in message.content] == [("text", whole_text(4))]
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (len("be briefhi") - 1, 1, 4)
    (request,) = worker.seen
    assert [(turn.role, turn.content) for turn in request.messages] == [("system", "be brief"), ("user", "hi")]
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.top_p) == (0.5, 3, 0.9)
    assert request.sampling.max_tokens == 4


async def test_blocks_of_text_are_joined(claude, worker):
    system = [
        {"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": " brief"},
    ]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "c"},
            ],
        },
        {"role": "user", "content": "d"},
    ]
    await claude.messages.create(**{**HI, "messages": messages}, system=system, metadata={"user_id": "u"})
    (request,) = worker.seen
    assert [(turn.role, turn.content) for turn in request.messages] == [
        ("system", "be brief"),
        ("user", "ab"),
        ("assistant", "c"),
        ("user", "d"),
    ]


async def test_a_stream(claude, http, worker):
    async with claude.messages.stream(**HI) as stream:
        texts = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert "".join(texts) == whole_text(4) == message.content[0].text
    assert (message.stop_reason, message.usage.output_tokens, message.usage.input_tokens) == ("max_tokens", 4, 1)
    async with http.stream("POST", "/v1/messages", json={**HI, "stream": True}) as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        events = [event async for event in read_events(reply) if event.event]
    assert all(event.event == event.data["type"] for event in events)
    assert [event.event for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    plain = await claude.messages.create(**HI)
    assert plain.content[0].text == whole_message([event.data for event in events])["content"][0]["text"]


async def test_leaving_cancels(claude, redis_url):
    async with ScriptedWorker(redis_url, hold_after=2), AsyncClient(redis_url) as client:
        async with claude.messages.stream(**HI) as stream:
            async for _ in stream.text_stream:
                break
        await until(lambda: ended_as(client, JobStatus.CANCELLED))


CLAUDE_TOOLS = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "harmony"])
async def test_tools_are_called_and_their_results_read(claude, start_model, name):
    answer = ANSWERS[name]
    start_model(name, answer.text)
    asked = {"model": name, "max_tokens": 400, "tools": CLAUDE_TOOLS}
    question = {"role": "user", "content": "what will it be like?"}
    message = await claude.messages.create(messages=[question], **asked)
    assert message.stop_reason == "tool_use"
    uses = [block for block in message.content if block.type == "tool_use"]
    assert [(use.name, use.input) for use in uses] == [(call, json.loads(given)) for call, given in answer.calls]
    async with claude.messages.stream(messages=[question], **asked) as stream:
        final = await stream.get_final_message()
    assert [block.to_dict() | {"id": ""} for block in final.content] == [
        block.to_dict() | {"id": ""} for block in message.content
    ]

    results = [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"} for use in uses]
    if name == "harmony":  # its template takes one call a turn
        message.content.remove(uses[1])
        del results[1]
    history = [question, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    again = (await claude.messages.create(messages=history, **{**asked, "max_tokens": 3})).usage
    assert again.input_tokens + again.cache_read_input_tokens > message.usage.input_tokens


async def test_calls_whose_arguments_are_no_json_are_told_with_their_text(claude, start_model):
    written = ['{"city": "Rome", }', '{"days": 1e999}', '{"city": "\\ud800"}']
    calls = [f'<tool_call>\n{{"name": "get_weather", "arguments": {text}}}\n</tool_call>' for text in written]
    start_model("hermes", "\n".join(calls))
    question = {"role": "user", "content": "what will it be like?"}
    asked = {"model": "hermes", "max_tokens": 400, "tools": CLAUDE_TOOLS, "messages": [question]}
    message = await claude.messages.create(**asked)
    async with claude.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()
    for answer in (message, streamed):
        assert answer.stop_reason == "tool_use"
        assert [block.input["INVALID_JSON"] for block in answer.content] == written
    cut = await claude.messages.create(**{**asked, "max_tokens": 50})
    assert (cut.stop_reason, written[0].startswith(cut.content[0].input["INVALID_JSON"])) == ("max_tokens", True)


async def test_a_thought_has_a_budget(claude, start_model):
    start_model("hermes", "<think>" + "one two three four " * 10 + "</think>And so?")
    asked = {"model": "hermes", "max_tokens": 300, "messages": [{"role": "user", "content": "hm"}]}
    whole = await claude.messages.create(**asked)
    short = await claude.messages.create(thinking={"type": "enabled", "budget_tokens": 5}, **asked)
    thoughts = [message.content[0].thinking for message in (whole, short)]
    assert 0 < len(thoughts[1]) < len(thoughts[0])
    assert thoughts[0].startswith(thoughts[1])


async def ended_as(client: AsyncClient, status: JobStatus) -> bool:
    return [job.status for job in await client.jobs()] == [status]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"max_tokens": None}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"model": "absent"}, 404, "absent"),
        ({"messages": []}, 400, "messages"),
        ({"temperature": 1.5}, 400, "temperature"),
        ({"seed": 1}, 400, "seed is not supported"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, 400, "budget_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, 400, "context"),
        ({"messages": [{"role": "user", "content": "x" * 300}], "stream": True}, 400, "context"),
    ],
)
async def test_errors_have_anthropic_s_shape(http, worker, change, status, said):
    body = {name: value for name, value in {**HI, **change}.items() if value is not None}
    reply = await http.post("/v1/messages", json=body)
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    assert reply.status_code == status
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == kind
    assert said in reply.json()["error"]["message"]


async def test_a_failure_amid_a_stream_is_an_error_event(http, own_gateway, redis_url):
    async with ScriptedWorker(redis_url, hold_after=2) as worker, AsyncClient(redis_url) as client:
        async with http.stream("POST", "/v1/messages", json={**HI, "stream": True}) as reply:
            events = []
            async for event in read_events(reply):
                if event.event:
                    events.append(event)
                if event.event == "content_block_delta" and len(events) == 5:
                    (job,) = await client.jobs()
                    await client.cancel(job.id)
        assert worker.seen
    assert events[-1].event == events[-1].data["type"] == "error"
    assert events[-1].data["error"]["message"]


async def test_its_clients_send_their_key_in_a_header_of_their_own(own_gateway, redis_url):
    url = own_gateway(api_keys="acme:a-key")
    async with ScriptedWorker(redis_url) as worker:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="a-key", max_retries=0) as right:
            await right.messages.create(**HI)
        assert worker.tenants == ["acme"]
        async with anthropic.AsyncAnthropic(base_url=url, api_key="another", max_retries=0) as wrong:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await wrong.messages.create(**HI)
        assert caught.value.body["error"]["type"] == "authentication_error"
        async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
            assert (await http.post("/v1/messages", json=HI)).status_code == 401
            for key, status in (("a-key", 200), ("another", 401)):
                reply = await http.post("/v1/messages", json=HI, headers={"X-Api-Key": key})
                assert reply.status_code == status


async def test_tokens_are_counted_by_a_worker(claude, worker):
    counted = await claude.messages.count_tokens(model=MODEL, messages=HI["messages"], system="be brief")
    assert counted.input_tokens == len("be briefhi")
    assert worker.seen == []
    with pytest.raises(anthropic.BadRequestError, match="asks no questions"):
        await claude.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "?"}])


async def test_what_stopped_an_answer_is_told_and_left_off(own_gateway, redis_url, tmp_path):
    """The real agent, which looks for the strings, on a model whose text is known."""
    url = own_gateway()
    with WorkerProcess(redis_url, tmp_path / "log", fake="step_seconds=0.001", model="demo", lease=1.0) as real:
        real.wait_ready()
        async with (
            anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=STALL_S) as claude,
            AsyncClient(redis_url) as client,
        ):
            body = {**HI, "model": "demo", "max_tokens": 400, "stop_sequences": ["e", "an", "never in it", "e "]}
            message = await claude.messages.create(**body)
            async with claude.messages.stream(**body) as stream:
                streamed = await stream.get_final_message()
            for answer in (message, streamed):
                assert (answer.stop_reason, answer.stop_sequence in body["stop_sequences"]) == ("stop_sequence", True)
                stored = await client.result(answer.id.removeprefix("msg_"))
                assert stored.text == "".join(block.text for block in answer.content) + answer.stop_sequence
                assert not any(stop in block.text for block in answer.content for stop in body["stop_sequences"])
            counted = await claude.messages.count_tokens(model="demo", messages=HI["messages"])
            assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


# The pure parts


def test_tools_and_their_results_become_those_of_a_chat_completion():
    body = MessagesRequest.model_validate(
        {
            **HI,
            "messages": [
                {"role": "user", "content": "weather?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "t1", "name": "look", "input": {"city": "Bonn"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sun"}]},
                        {"type": "text", "text": "thanks"},
                    ],
                },
            ],
            "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        }
    )
    fields = body._fields()
    call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Bonn"}'}}
    assert fields["messages"] == [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "sun"},
        {"role": "user", "content": "thanks"},
    ]
    function = {"name": "look", "description": "d", "parameters": {"type": "object"}}
    assert fields["tools"] == [{"type": "function", "function": function}]
    assert (fields["tool_choice"], fields["parallel_tool_calls"]) == ("required", False)


TEXTS = st.lists(st.text(max_size=4), min_size=1, max_size=12)


CALLS = AnswerFormat("hermes", "think")


def grouped(texts: list[str], cuts: list[int], reason: str | None, form: AnswerFormat | None = None) -> Iterator[Chunk]:
    edges = sorted({0, len(texts), *(cut for cut in cuts if cut < len(texts))})
    for start, end in itertools.pairwise(edges):
        last = reason if end == len(texts) else None
        yield Chunk(0, tuple(range(start, end)), tuple(texts[start:end]), None, last, None if start else form)


@given(texts=TEXTS, cuts=st.lists(st.integers(1, 12)), reason=st.sampled_from([None, "stop", "length"]))
def test_events_do_not_depend_on_how_a_log_is_cut(texts: list[str], cuts: list[int], reason: str | None) -> None:
    def events(cuts: list[int]) -> bytes:
        answer = MessageEvents("g00_0", "m", AnswerParser("g00_0"), ["zz"])
        found = [event for chunk in grouped(texts, cuts, reason) for event in answer.add(chunk)]
        return json.dumps([*found, *answer.end(Usage(5, len(texts), 2))]).encode()

    assert events(cuts) == events(list(range(len(texts)))) == events([])
    message = whole_message(json.loads(events(cuts)))
    assert "".join(block["text"] for block in message["content"]) == "".join(texts).removesuffix(
        message["stop_sequence"] or ""
    )
    assert message["usage"] == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 2,
        "output_tokens": len(texts),
    }


def test_thoughts_and_calls_are_blocks_of_their_own() -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {"city": "Bonn"}}\n</tool_call>'
    texts = ["<think>", "hm", "</think>", "I look.", *call]
    answer = MessageEvents("g00_0", "m", AnswerParser("g00_0"))
    events = [event for chunk in grouped(texts, [], "stop", CALLS) for event in answer.add(chunk)]
    message = whole_message([*events, *answer.end(Usage(5, len(texts)))])
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    thinking, text, tool_use = message["content"]
    assert (thinking["thinking"], text["text"]) == ("hm", "I look.")
    assert (tool_use["name"], tool_use["input"], bool(tool_use["id"])) == ("look", {"city": "Bonn"}, True)
    assert message["stop_reason"] == "tool_use"
    starts = [event["index"] for event in events if event["type"] == "content_block_start"]
    assert starts == [0, 1, 2]


@pytest.mark.parametrize("text", ['<tool_call>{"name": "look", "arguments": {}}</tool_call>', "<think>STOP"])
def test_what_a_call_ends_with_stopped_no_answer(text: str) -> None:
    """A grammar that is complete ends a text with its last token, which stop strings had no part in."""
    answer = MessageEvents("g00_0", "m", AnswerParser("g00_0"), ["}", "</tool_call>", "STOP"])
    events = [event for chunk in grouped([text], [], "stop", CALLS) for event in answer.add(chunk)]
    message = whole_message([*events, *answer.end(Usage(5, 1))])
    assert message["stop_sequence"] is None
    assert message["stop_reason"] == ("tool_use" if "look" in text else "end_turn")
    assert message["content"][0].get("thinking", "STOP") == "STOP"
