"""Tools, thoughts and schemas of responses, as the `openai` package sees them: the real agent with templates of every
family, on an engine that says what such a model would."""

from __future__ import annotations

import json

import openai
import pytest
from chat_templates import FAMILIES
from pydantic import BaseModel
from response_oracles import check_event, check_item, check_response
from scripted_worker import MODEL, ScriptedWorker
from tool_answers import ANSWERS, ROME, TOOLS

from octavo.terms.messages import Chunk

ASKED = [{"role": "user", "content": "What will it be like?"}]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
CHOICES = [
    ({"type": "function", "name": "get-news"}, "required", ["get_weather", "get-news"]),
    ({"type": "allowed_tools", "mode": "auto", "tools": [FLAT[0] | {"parameters": None}]}, "auto", ["get_weather"]),
    ("required", "required", ["get_weather", "get-news"]),
    ("none", "none", ["get_weather", "get-news"]),
]


def said(output):
    """Content, reasoning and calls of output items."""
    items = [item if isinstance(item, dict) else item.model_dump(mode="json") for item in output]
    texts = {
        kind: "".join(item["content"][0]["text"] for item in items if item["type"] == kind) or None
        for kind in ("message", "reasoning")
    }
    calls = [(item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"]
    return texts["message"], texts["reasoning"], calls


def expected(answer):
    return answer.content, answer.reasoning, [(name, json.loads(arguments)) for name, arguments in answer.calls]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", FAMILIES)
async def test_a_model_of_every_family_calls_tools(ai, http, start_model, name):
    answer = ANSWERS[name]
    start_model(name, answer.text)
    reply = await ai.responses.create(model=name, input=ASKED, tools=FLAT, max_output_tokens=400)
    assert reply.status == "completed"
    assert said(reply.output) == expected(answer)
    shown = (await http.get(f"/v1/responses/{reply.id}")).json()
    check_response(shown)
    assert [tool["name"] for tool in shown["tools"]] == ["get_weather", "get-news"]

    events = []
    async for event in await ai.responses.create(
        model=name, input=ASKED, tools=FLAT, max_output_tokens=400, stream=True, background=True
    ):
        events.append(event.model_dump(mode="json", exclude_unset=True))
        check_event(events[-1])
    assert said(events[-1]["response"]["output"]) == expected(answer)
    pieces = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert len(pieces) >= 2

    # the answer goes back as it came, with what the tools found: once as input, once by its id
    calls = [item for item in reply.output if item.type == "function_call"]
    if name in ("llama3_json", "harmony"):  # their templates take one call a turn
        calls = calls[:1]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    kept = [item for item in reply.output if item.type != "function_call" or item in calls]
    again = await ai.responses.create(model=name, input=[*ASKED, *kept, *results], tools=FLAT, max_output_tokens=3)
    assert again.usage.input_tokens > reply.usage.input_tokens
    if len(calls) == 2:
        following = await ai.responses.create(
            model=name, input=results, previous_response_id=reply.id, tools=FLAT, max_output_tokens=3
        )
        assert following.usage.input_tokens == again.usage.input_tokens
        items = (await http.get(f"/v1/responses/{following.id}/input_items?order=asc")).json()["data"]
        for item in items:
            check_item(item)
        assert [item["type"] for item in items[-2:]] == ["function_call_output"] * 2


async def test_a_thought_is_counted_and_may_be_limited(ai, start_model):
    start_model("hermes", "<think>" + "one two three four " * 5 + "</think>And so?")
    whole = await ai.responses.create(model="hermes", input=ASKED, max_output_tokens=300)
    limited = await ai.responses.create(
        model="hermes", input=ASKED, max_output_tokens=300, extra_body={"thinking_token_budget": 7}
    )
    counts = [reply.usage.output_tokens_details.reasoning_tokens for reply in (whole, limited)]
    assert counts[0] > counts[1] > 0
    assert said(whole.output)[0] == "And so?"
    assert said(whole.output)[1].startswith(said(limited.output)[1])


async def test_effort_and_arguments_reach_the_template(ai, start_model):
    start_model("deepseek_v3_1", "Rome, then.</think>Let me see.")
    thinking = {"chat_template_kwargs": {"thinking": True}}
    one = await ai.responses.create(model="deepseek_v3_1", input=ASKED, extra_body=thinking)
    two = await ai.responses.create(model="deepseek_v3_1", input=ASKED, reasoning={"effort": "none"})
    assert said(one.output)[:2] == ("Let me see.", "Rome, then.")
    assert said(two.output)[1] is None


async def test_an_effort_that_the_template_does_not_read_is_named(http, start_model):
    start_model("deepseek_v3_1", "Let me see.")
    body = {"model": "deepseek_v3_1", "messages": ASKED, "reasoning_effort": "high", "enable_thinking": False}
    reply = await http.post("/v1/chat/completions", json=body)
    assert (reply.status_code, reply.headers["octavo-ignored"]) == (200, "reasoning_effort")


async def test_parallel_calls_can_be_refused(ai, start_model):
    start_model("hermes", ANSWERS["hermes"].text)
    reply = await ai.responses.create(
        model="hermes", input=ASKED, tools=FLAT, parallel_tool_calls=False, max_output_tokens=400
    )
    assert len(said(reply.output)[2]) == 1


async def test_a_call_that_is_cut_off_is_incomplete(ai, start_model):
    start_model("mistral", ANSWERS["mistral"].text)
    reply = await ai.responses.create(model="mistral", input=ASKED, tools=FLAT, max_output_tokens=50)
    call = reply.output[-1]
    assert (reply.status, call.type, call.status) == ("incomplete", "function_call", "incomplete")
    assert ROME.startswith(call.arguments)


@pytest.mark.parametrize(("choice", "mode", "names"), CHOICES, ids=[mode for _, mode, _ in CHOICES])
async def test_choices_among_tools_reach_the_job(http, worker, choice, mode, names):
    body = {"model": MODEL, "input": "x", "tools": FLAT, "tool_choice": choice, "max_output_tokens": 1}
    if isinstance(choice, dict) and "tools" in choice:
        body["tool_choice"] = {**choice, "tools": [{"type": "function", "name": "get_weather"}]}
    reply = await http.post("/v1/responses", json=body)
    check_response(reply.json())
    assert reply.json()["tool_choice"] == body["tool_choice"]
    (job,) = worker.seen
    assert (job.tool_choice.mode, [tool.name for tool in job.tools]) == (mode, names)


PATCH = '*** Begin Patch\n+ "é"\n*** End Patch'
EDIT = {"type": "custom", "name": "edit", "description": "Edits.", "format": {"type": "text"}}


async def test_a_custom_tool_is_called_with_a_text(ai, http, start_model):
    call = json.dumps({"name": "edit", "arguments": {"input": PATCH}}, ensure_ascii=False)
    start_model("hermes", f"<tool_call>\n{call}\n</tool_call>")
    fields = {"model": "hermes", "input": ASKED, "tools": [*FLAT, EDIT], "max_output_tokens": 400}
    events = [event async for event in await ai.responses.create(**fields, stream=True, background=True)]
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    (done,) = (event for event in events if event.type == "response.custom_tool_call_input.done")
    assert len(deltas) > 2
    assert "".join(deltas) == done.input == PATCH
    final = events[-1].response
    (item,) = final.output
    assert (item.type, item.name, item.input, done.item_id) == ("custom_tool_call", "edit", PATCH, item.id)
    assert [tool.type for tool in final.tools] == ["function", "function", "custom"]
    assert (await ai.responses.retrieve(final.id)).output == final.output

    # it goes back with what the tool said, as an item or by its response
    said = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "Done"}
    sent = item.model_dump(exclude_none=True)
    whole = await ai.responses.create(**{**fields, "input": [*ASKED, sent, said], "max_output_tokens": 2})
    fields |= {"input": [said], "previous_response_id": final.id, "max_output_tokens": 2}
    following = await ai.responses.create(**fields)
    assert following.usage.input_tokens == whole.usage.input_tokens > final.usage.input_tokens
    items = (await http.get(f"/v1/responses/{following.id}/input_items?order=asc")).json()["data"]
    assert [item["type"] for item in items[-2:]] == ["custom_tool_call", "custom_tool_call_output"]


async def test_a_custom_tool_is_a_function_of_one_text(http, worker):
    lark = {**EDIT, "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}}
    body = {"model": MODEL, "input": "x", "tools": [lark], "max_output_tokens": 1}
    chosen = {"tool_choice": {"type": "custom", "name": "edit"}}
    reply = await http.post("/v1/responses", json=body | chosen)
    assert (reply.status_code, reply.headers["octavo-ignored"]) == (200, "tools.format")
    assert reply.json()["tools"] == [lark]
    (job,) = worker.seen
    assert (job.tool_choice.mode, job.tool_choice.name) == ("required", "edit")
    assert job.tools[0].schema_of_parameters["required"] == ["input"]
    assert job.tools[0].description == 'Edits.\n\nstart: "x"'


async def test_a_custom_call_goes_back_with_its_text(http, worker):
    call = {"type": "custom_tool_call", "call_id": "c", "name": "edit", "input": PATCH}
    said = {"type": "custom_tool_call_output", "call_id": "c", "output": "Done"}
    body = {"model": MODEL, "input": [*ASKED, call, said], "tools": [EDIT], "max_output_tokens": 1}
    assert (await http.post("/v1/responses", json=body)).status_code == 200
    _, called, returned = worker.seen[0].messages
    assert json.loads(called.tool_calls[0].arguments) == {"input": PATCH}
    assert (returned.role, returned.content, returned.tool_call_id) == ("tool", "Done", "c")
    twice = await http.post("/v1/responses", json=body | {"input": [call, said, said]})
    assert (twice.status_code, "two outputs" in twice.text) == (400, True)


REFUSED = [
    ({"tools": [{"type": "function_of_mine", "name": "f", "parameters": {}}]}, "tools.0"),
    ({"tools": [{"type": "custom", "name": "f", "strict": True}]}, "tools.0"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"tools": [FLAT[0], FLAT[0]]}, "tools"),
    ({"tools": FLAT, "tool_choice": {"type": "function", "name": "absent"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[f"{param}-{i}" for i, (_, param) in enumerate(REFUSED)])
async def test_what_is_wrong_with_tools_and_formats_is_named(http, worker, body, param):
    reply = await http.post("/v1/responses", json={"model": MODEL, "input": "x", **body})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert worker.seen == []


class Weather(BaseModel):
    city: str
    days: int


class Writer(ScriptedWorker):
    """Writes the weather of Rome, a token a character, and stops by itself."""

    def _chunk(self, request, sequence, position, total):
        reason = "stop" if position == len(ROME) - 1 else None
        return Chunk(token_ids=(position,), texts=(ROME[position],), finish_reason=reason)


async def test_the_package_s_own_helpers_parse_text(ai, redis_url, gateway_url):
    fields = {"model": MODEL, "input": "x", "text_format": Weather, "max_output_tokens": len(ROME)}
    async with Writer(redis_url) as worker:
        reply = await ai.responses.parse(**fields)
        assert reply.output_parsed == Weather(city="Rome", days=3)
        async with ai.responses.stream(**fields) as stream:
            final = await stream.get_final_response()
        assert final.output_parsed == Weather(city="Rome", days=3)
        assert [seen.grammar.kind for seen in worker.seen] == ["json_schema"] * 2


async def test_the_package_s_own_helpers_parse_calls(ai, start_model):
    start_model("hermes", f'<tool_call>\n{{"name": "Weather", "arguments": {ROME}}}\n</tool_call>')
    tool = openai.pydantic_function_tool(Weather)
    fields = {"model": "hermes", "input": "x", "tools": [tool], "max_output_tokens": 200}
    called = await ai.responses.parse(**fields)
    assert called.output[0].parsed_arguments == Weather(city="Rome", days=3)
    async with ai.responses.stream(**fields) as stream:
        final = await stream.get_final_response()
    assert final.output[0].parsed_arguments == Weather(city="Rome", days=3)


async def test_a_format_is_the_job_s_grammar(http, worker):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for form, kind in (
        ({"type": "json_object"}, "json_object"),
        ({"type": "json_schema", "name": "x", "schema": schema, "strict": True}, "json_schema"),
        ({"type": "text"}, None),
    ):
        body = {"model": MODEL, "input": "x", "text": {"format": form}, "max_output_tokens": 1}
        reply = (await http.post("/v1/responses", json=body)).json()
        check_response(reply)
        assert reply["text"]["format"] == ({**form, "description": None} if "schema" in form else form)
        grammar = worker.seen[-1].grammar
        assert (grammar and grammar.kind) == kind
    assert '"additionalProperties": false' in worker.seen[-2].grammar.text
