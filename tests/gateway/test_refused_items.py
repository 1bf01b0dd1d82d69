"""Requests that a fuzzer of the dialects found: each is a 400 or a 404 that says why, before anything is accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_worker import MODEL

TURN = [{"role": "user", "content": "hi"}]
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
FLAT = {"type": "function", "name": "f", "parameters": {"type": "object", "x": 0.25}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"x": 0.25}}}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 0.25}}
ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"x": 0.25}}


def response(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": [{"role": "user", "content": "hi"}, *items], "max_output_tokens": 2, **fields}


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([OUTPUT], "no call before it"),
        ([OUTPUT, CALL], "no call before it"),
        ([CALL, {**OUTPUT, "call_id": "c2"}], "no call before it"),
        ([CALL, OUTPUT, OUTPUT], "two outputs"),
        ([CALL, OUTPUT, {"role": "user", "content": "so"}, OUTPUT], "two outputs"),
    ],
)
async def test_an_output_belongs_to_one_call(http, worker, items, said):
    reply = await http.post("/v1/responses", json=response(*items))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")
    assert said in reply.json()["error"]["message"]
    assert worker.seen == []


async def test_an_output_may_answer_a_call_of_an_earlier_response_once(http, worker):
    asked = response(CALL, {**CALL, "call_id": "c2"}, OUTPUT)
    first = (await http.post("/v1/responses", json=asked)).json()
    behind = {"model": MODEL, "previous_response_id": first["id"], "max_output_tokens": 2}
    again = await http.post("/v1/responses", json={**behind, "input": [OUTPUT]})
    assert (again.status_code, "two outputs" in again.text) == (400, True)
    other = await http.post("/v1/responses", json={**behind, "input": [{**OUTPUT, "call_id": "c2"}]})
    assert other.status_code == 200
    # a model may use an id again in a later turn
    repeated = response(CALL, OUTPUT, {"role": "user", "content": "again"}, CALL, OUTPUT)
    assert (await http.post("/v1/responses", json=repeated)).status_code == 200


@pytest.mark.parametrize("name", ["", None])
async def test_a_reference_names_an_item(http, worker, name):
    reply = await http.post("/v1/responses", json=response({"type": "item_reference", "id": name}))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input.1")


NUMBERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "responses": ("/v1/responses", response(tools=[FLAT]), "tools.0.parameters"),
    "background": ("/v1/responses", response(tools=[FLAT], background=True), "tools.0.parameters"),
    "stream": ("/v1/responses", response(tools=[FLAT], stream=True), "tools.0.parameters"),
    "format": ("/v1/responses", response(text={"format": SCHEMA}), "text.format.schema"),
    "arguments": ("/v1/responses", response(chat_template_kwargs={"x": 0.25}), "chat_template_kwargs"),
    "chat": ("/v1/chat/completions", {"messages": TURN, "tools": [TOOL]}, "tools.0.function.parameters"),
    "guided": ("/v1/completions", {"prompt": "hi", "guided_json": {"x": 0.25}}, "guided_json"),
    "ui": (
        "/v1/chat",
        {"id": "c", "messages": [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}], "tools": [TOOL]},
        "tools.0.function.parameters",
    ),
    "messages": (
        "/v1/messages",
        {"messages": TURN, "max_tokens": 2, "tools": [{"name": "f", "input_schema": {"x": 0.25}}]},
        "tools.0.input_schema",
    ),
    "use": (
        "/v1/messages",
        {"messages": [*TURN, {"role": "assistant", "content": [USE]}], "max_tokens": 2},
        "messages.1.content.0.tool_use.input",
    ),
}


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("case", NUMBERS)
async def test_a_number_that_json_lacks_is_refused_where_it_stands(http, worker, case, number):
    path, body, place = NUMBERS[case]
    sent = json.dumps({"model": MODEL, **body})
    assert "0.25" in sent
    reply = await http.post(path, content=sent.replace("0.25", number), headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert place in reply.text
    assert "number that JSON lacks" in reply.text
    assert worker.seen == []


ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "responses": ("/v1/responses", response(text={"format": {**SCHEMA, "schema": ENDLESS}})),
    "tool": ("/v1/responses", response(tools=[{**FLAT, "parameters": ENDLESS, "strict": True}])),
    "completions": ("/v1/completions", {"prompt": "hi", "guided_json": ENDLESS}),
    "chat": (
        "/v1/chat/completions",
        {"messages": TURN, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": ENDLESS}}},
    ),
    "messages": (
        "/v1/messages",
        {"messages": TURN, "max_tokens": 2, "tools": [{"name": "f", "input_schema": ENDLESS, "strict": True}]},
    ),
    "job": ("/v1/jobs", {"prompt": "hi", "grammar": {"kind": "json_schema", "text": ENDLESS}}),
}


@pytest.mark.parametrize("case", ASKED)
async def test_a_schema_that_requires_itself_is_refused_with_its_place(http, worker, case):
    path, body = ASKED[case]
    reply = await http.post(path, json={"model": MODEL, **body})
    assert reply.status_code == 400
    assert "(at #/properties/a/$ref)" in reply.text
    assert worker.seen == []


async def test_tokens_of_a_model_that_never_existed_are_not_counted(http, worker):
    reply = await http.post("/v1/messages/count_tokens", json={"model": "absent", "messages": TURN})
    assert (reply.status_code, reply.json()["error"]["type"]) == (404, "not_found_error")
    assert "absent" in reply.json()["error"]["message"]


LONG = "x" * 200_000
REPEATING: dict[str, tuple[str, dict[str, Any]]] = {
    "block": ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": LONG}]}], "max_tokens": 2}),
    "type": ("/v1/completions", {"prompt": "hi", "guided_json": {"type": LONG}}),
    "reference": ("/v1/completions", {"prompt": "hi", "guided_json": {"$ref": f"http://{LONG}"}}),
    "place": ("/v1/completions", {"prompt": "hi", "guided_json": {"properties": {LONG: {"not": {}}}}}),
    "choice": (
        "/v1/chat/completions",
        {"messages": TURN, "tool_choice": {"type": "function", "function": {"name": LONG}}},
    ),
    "unknown": ("/v1/chat/completions", {"messages": TURN, LONG: 1}),
}


@pytest.mark.parametrize("case", REPEATING)
async def test_no_error_repeats_what_was_sent(http, worker, case):
    path, body = REPEATING[case]
    reply = await http.post(path, json={"model": MODEL, **body}, headers={"octavo-strict": "1"})
    assert reply.status_code == 400
    assert len(reply.text) < 2000
    if case == "block":
        assert "xxx" not in reply.text


async def test_a_long_path_is_not_repeated(http):
    reply = await http.get(f"/none/{'x' * 40_000}")
    assert (reply.status_code, len(reply.text) < 1000) == (404, True)
