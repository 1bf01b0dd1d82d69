"""The rule for fields: those that act, hints, which are taken and named, and those that are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import field_tables
import httpx
import pytest
from pydantic import BaseModel
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S, until

from octavo.dialects.anthropic.body import TABLES as ANTHROPIC
from octavo.dialects.anthropic.body import CountRequest, MessagesRequest
from octavo.dialects.field_table import FieldTable
from octavo.dialects.ignored import MOST_NAMES, Ignored
from octavo.dialects.openai.requests import TABLES, ChatCompletionRequest, CompletionRequest
from octavo.dialects.openai.responses.requests import TABLE, ResponseRequest
from octavo.dialects.sieve import sift
from octavo.terms.errors import InvalidRequest

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [USER], "max_tokens": 2},
    TEXT: {"model": MODEL, "prompt": "hi", "max_tokens": 2},
    RESPONSES: {"model": MODEL, "input": [USER], "max_output_tokens": 2},
    MESSAGES: {"model": MODEL, "messages": [USER], "max_tokens": 2},
}
TABLE_OF: dict[str, FieldTable] = {
    CHAT: TABLES[ChatCompletionRequest],
    TEXT: TABLES[CompletionRequest],
    RESPONSES: TABLE,
    MESSAGES: ANTHROPIC[MessagesRequest],
    COUNT: ANTHROPIC[CountRequest],
}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
DEEP: dict[str, dict[str, Any]] = {
    CHAT: {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "x": 1}], "x": 1}],
        "tools": [{"type": "function", "function": {**FUNCTION["function"], "x": {"y": 1}}, "x": 1}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "x": 1}, "x": 1},
        "stream_options": None,
        "x": [1],
    },
    TEXT: {"x": 1, "structured_outputs": {"regex": "a", "x": 1}},
    RESPONSES: {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi", "x": 1}], "x": 1}],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "x": 1}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "x": 1}},
        "reasoning": {"x": 1},
    },
    MESSAGES: {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "x": 1}], "x": 1}],
        "tools": [{"name": "f", "input_schema": SCHEMA, "x": 1}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA, "x": 1}, "x": 1},
        "thinking": {"type": "enabled", "x": 1},
    },
}
NAMED = {
    CHAT: "messages.content.x, messages.x, "
    "tools.function.x, tools.x, response_format.json_schema.x, response_format.x, x",
    TEXT: "x, structured_outputs.x",
    RESPONSES: "input.content.x, input.x, tools.x, text.format.x, reasoning.x",
    MESSAGES: "messages.content.x, messages.x, tools.x, output_config.format.x, output_config.x, thinking.x",
}


def without(value: Any, name: str) -> Any:
    """A body without members of a name, schemas left alone."""
    if isinstance(value, dict):
        return {key: item if key == "properties" else without(item, name) for key, item in value.items() if key != name}
    return [without(item, name) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", ASKED)
async def test_unknown_fields_are_named_and_change_nothing(
    http: httpx.AsyncClient, worker: ScriptedWorker, path: str
) -> None:
    body = ASKED[path] | DEEP[path]
    reply = await http.post(path, json=body)
    assert (reply.status_code, reply.headers["octavo-ignored"]) == (200, NAMED[path]), reply.text
    plain = await http.post(path, json=without(body, "x"))
    assert (plain.status_code, plain.headers.get("octavo-ignored")) == (200, None), plain.text
    one, other = worker.seen
    assert one.model_copy(update={"sampling": other.sampling}) == other


@pytest.mark.parametrize("path", ASKED)
async def test_a_strict_request_refuses_them(http: httpx.AsyncClient, worker: ScriptedWorker, path: str) -> None:
    reply = await http.post(path, json=ASKED[path] | {"invented": 1}, headers={"octavo-strict": "1"})
    assert (reply.status_code, "invented is unknown" in reply.text) == (400, True)
    hinted = {"service_tier": "auto"}
    known = await http.post(path, json=ASKED[path] | hinted, headers={"octavo-strict": "true"})
    assert (known.status_code, known.headers["octavo-ignored"]) == (200, "service_tier"), known.text
    lenient = await http.post(path, json=ASKED[path] | {"invented": 1}, headers={"octavo-strict": "0"})
    assert lenient.status_code == 200
    odd = await http.post(path, json=ASKED[path], headers={"octavo-strict": "please"})
    assert (odd.status_code, "octavo-strict" in odd.text) == (400, True)


async def test_a_strict_gateway_refuses_them_whatever_a_request_says(own_gateway: Any, worker: ScriptedWorker) -> None:
    async with httpx.AsyncClient(base_url=own_gateway(strict_fields=True), timeout=STALL_S) as http:
        for path, body in ASKED.items():
            reply = await http.post(path, json=body | {"invented": 1}, headers={"octavo-strict": "0"})
            assert reply.status_code == 400
            assert (await http.post(path, json=body)).status_code == 200


STRICT = {
    "/v1/jobs": {"model": MODEL, "prompt": "x"},
    "/tokenize": {"model": MODEL, "prompt": "x"},
    "/detokenize": {"model": MODEL, "tokens": [1]},
    "/v1/chat": {"id": "c", "messages": [{"role": "user", "parts": [{"type": "text", "text": "x"}]}], "model": MODEL},
}


@pytest.mark.parametrize("path", STRICT)
async def test_octavo_s_own_routes_are_strict(http: httpx.AsyncClient, worker: ScriptedWorker, path: str) -> None:
    reply = await http.post(path, json=STRICT[path] | {"invented": 1})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "invented")


def refused() -> Iterator[tuple[str, str]]:
    for path, table in TABLE_OF.items():
        yield from ((path, name) for name in table.refused)


def nested(name: str, value: Any, table: FieldTable) -> dict[str, Any]:
    """A body with a field at a path: lists where the body has lists."""
    head, _, rest = name.partition(".")
    if not rest:
        return {head: value}
    inner = nested(rest, value, table)
    return {head: [inner] if head in ("messages", "tools", "input") else inner}


@pytest.mark.parametrize("strict", [False, True])
def test_what_would_change_the_answer_is_no_hint(strict: bool) -> None:
    for path, name in refused():
        table = TABLE_OF[path]
        ignored = Ignored()
        with pytest.raises(InvalidRequest) as caught:
            sift(table, nested(name, {"a": 1}, table), ignored, strict=strict)
        assert (caught.value.param or "").replace(".0", "") == name
        assert table.refused[name].advice in caught.value.message
        for value in (None, False, "", [], {}, *table.refused[name].neutral):
            body = nested(name, value, table)
            sift(table, body, ignored, strict=strict)
            assert json.dumps(body).count(name.rpartition(".")[2]) == 0
        assert not ignored


def test_what_acts_in_one_dialect_is_no_hint_in_another() -> None:
    thinking = {"reasoning_effort", "think", "enable_thinking", "thinking", "thinking_budget", "reasoning"}
    harmless = {
        TEXT: thinking | {"parallel_tool_calls", "tool_choice", "tools", "chat_template_kwargs"},
        RESPONSES: {"thinking", "thinking_budget"},
    }
    of_chat = set(ChatCompletionRequest.model_fields) | set(CompletionRequest.model_fields)
    for path in ASKED:
        table = TABLE_OF[path]
        known = set(table.body.model_fields) | set(table.refused) | table.hints | harmless.get(path, set())
        neutral = {
            "echo",
            "continue_final_message",
            "add_generation_prompt",
            "guided_decoding_backend",
            "cache_control",
        }
        neutral |= {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "verbosity", "store"}
        neutral.add("stream_options")
        assert of_chat - known - neutral == set()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"logit_processors": [{"qualname": "x"}]}, "logit_processors"),
    (CHAT, {"grammar": 'root ::= "a"'}, "grammar"),
    (CHAT, {"n": 65}, "n"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0",
    ),
    (CHAT, {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]}, "messages.0.audio"),
    (TEXT, {"suffix": "x"}, "suffix"),
    (RESPONSES, {"n": 2}, "n"),
    (RESPONSES, {"guided_regex": "a"}, "guided_regex"),
    (MESSAGES, {"guided_json": SCHEMA}, "guided_json"),
    (MESSAGES, {"n": 2}, "n"),
    (MESSAGES, {"response_format": {"type": "json_object"}}, "response_format"),
    (
        MESSAGES,
        {"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "any"}},
        "tool_choice",
    ),
    (
        MESSAGES,
        {"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "tool", "name": "w"}},
        "tool_choice",
    ),
    (CHAT, {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
]


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED, ids=[f"{path} {param}" for path, _, param in REFUSED])
async def test_refusals_name_the_field(
    http: httpx.AsyncClient, worker: ScriptedWorker, path: str, fields: dict[str, Any], param: str
) -> None:
    reply = await http.post(path, json=ASKED[path] | fields)
    assert (reply.status_code, param in reply.json()["error"]["message"]) == (400, True), reply.text
    assert worker.seen == []


NEUTRAL: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"echo": False, "continue_final_message": False, "add_generation_prompt": True, "top_logprobs": 0}),
    (CHAT, {"max_tokens": -1, "max_completion_tokens": 2, "stop": [], "tools": [], "functions": [], "modalities": []}),
    (CHAT, {"logit_bias": {}, "metadata": {}, "suffix": "", "logit_processors": [], "mcp_servers": [], "n": 1}),
    (CHAT, {"messages": [{**USER, "refusal": None, "annotations": [], "citations": None, "tool_calls": []}]}),
    (CHAT, {"repeat_penalty": 1.0, "mirostat": 0, "typical_p": 1, "do_sample": True, "separate_reasoning": True}),
    (TEXT, {"logprobs": False, "top_logprobs": 0, "echo": False, "tools": []}),
    (RESPONSES, {"tools": [], "include": [], "top_logprobs": 0, "stream_options": {"include_obfuscation": False}}),
    (MESSAGES, {"tools": [], "stop_sequences": [], "system": [], "n": 1, "seed": None, "mcp_servers": []}),
    (MESSAGES, {"tools": None, "stop_sequences": None, "output_config": {"format": None}}),
]


@pytest.mark.parametrize(("path", "fields"), NEUTRAL, ids=str)
async def test_what_changes_nothing_is_taken_and_not_named(
    http: httpx.AsyncClient, worker: ScriptedWorker, path: str, fields: dict[str, Any]
) -> None:
    replies = [await http.post(path, json=ASKED[path] | more) for more in (fields, {})]
    assert [reply.status_code for reply in replies] == [200, 200], replies[0].text
    assert "octavo-ignored" not in replies[0].headers
    one, other = worker.seen
    assert one.model_copy(update={"sampling": other.sampling}) == other
    assert one.sampling.model_copy(update={"seed": other.sampling.seed}) == other.sampling


async def test_a_limit_of_minus_one_is_none(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    for path, name in ((CHAT, "max_tokens"), (TEXT, "max_tokens"), (RESPONSES, "max_output_tokens")):
        assert (await http.post(path, json=ASKED[path] | {name: -1})).status_code == 200
        assert worker.seen[-1].sampling.max_tokens is None
        assert (await http.post(path, json=ASKED[path] | {name: -2})).status_code == 400


async def test_errors_and_streams_name_hints_too(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    for path, body in ASKED.items():
        wrong = body | {"invented": 1, "temperature": 9}
        lost = body | {"invented": 1, "model": "absent"}
        streamed = body | {"invented": 1, "stream": True}
        replies = [await http.post(path, json=each) for each in (wrong, lost, streamed)]
        assert [reply.status_code for reply in replies] == [400, 404, 200]
        assert {reply.headers["octavo-ignored"] for reply in replies} == {"invented"}


BAD = ["a b", "é", "x" * 65, "a\r\nSet-Cookie: b", '"', "a,b", "\x1b[31m", ""]


async def test_a_client_s_text_reaches_no_header_and_no_log(
    http: httpx.AsyncClient, worker: ScriptedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "octavo_gateway"):
        reply = await http.post(CHAT, json=ASKED[CHAT] | dict.fromkeys(BAD, 1) | {"fine-1.b_": 1})
    assert reply.headers["octavo-ignored"] == f"fine-1.b_, +{len(BAD)}"
    found = await until(lambda: [record for record in caplog.records if getattr(record, "path", "") == CHAT])
    line = found[0]
    assert line.getMessage().endswith(f", ignored fine-1.b_, +{len(BAD)}")
    assert line.__dict__["ignored"] == f"fine-1.b_, +{len(BAD)}"
    odd = await http.post(CHAT, json=ASKED[CHAT] | {"tools": [{"type": "a\nb"}, {"type": "c"}]})
    assert odd.headers["octavo-ignored"] == "tools.c, +1"


def test_there_are_at_most_sixteen_names() -> None:
    ignored = Ignored()
    for i in range(40):
        ignored.add(f"a{i}")
        ignored.add(f"a{i}")
    *names, others = ignored.header().split(", ")
    assert (names, others) == ([f"a{i}" for i in range(MOST_NAMES)], "+24")
    assert Ignored().header() == ""


async def test_a_repeat_may_have_other_hints(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    replies = [
        await http.post(CHAT, json=ASKED[CHAT] | {"invented": i}, headers={"Idempotency-Key": "k"}) for i in range(2)
    ]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].json()["id"] == replies[1].json()["id"]


def test_the_sieve_looks_at_each_object_once() -> None:
    """A list of very many objects costs what its objects are worth."""
    many = 10_000
    body = ASKED[CHAT] | {"messages": [{**USER, "a": 1, "b": 2} for _ in range(many)]}
    ignored = Ignored()
    sift(TABLE_OF[CHAT], body, ignored, strict=False)
    assert list(ignored) == ["messages.a", "messages.b"]
    assert body["messages"] == [USER] * many
    # of an object with more members than any has it takes no notice: it is refused as a whole
    wide = ASKED[TEXT] | {f"a{i}": 0 for i in range(many)}
    sift(TABLE_OF[TEXT], wide, ignored, strict=False)
    # nor of a list with more tools than there may be
    sift(TABLE_OF[CHAT], {"tools": [{"type": "web_search"}] * many}, ignored, strict=False)
    assert len(list(ignored)) == 2


@pytest.mark.parametrize("body", [None, [], 1, "x", {"messages": 1}, {"messages": [1, None, []], "tools": [None]}])
def test_a_body_of_another_form_is_left_alone(body: Any) -> None:
    for path, table in TABLE_OF.items():
        if path not in (TEXT, RESPONSES):  # which refuse messages
            sift(table, body, Ignored(), strict=False)


def test_a_response_keeps_tools_of_its_caller() -> None:
    tools = [{"type": "custom", "name": "a"}, {"type": "mcp", "server_label": "b"}, {"type": "function", "name": "c"}]
    body = ASKED[RESPONSES] | {"tools": tools, "include": ["file_search_call.results", "reasoning.encrypted_content"]}
    ignored = Ignored()
    sift(TABLE, body, ignored, strict=False)
    assert list(ignored) == ["tools.mcp", "include.file_search_call.results"]
    assert [tool.name for tool in ResponseRequest.model_validate(body).tools or ()] == ["a", "c"]


@pytest.mark.parametrize("page", field_tables.PAGES)
def test_documents_have_the_tables_of_the_code(page: str) -> None:
    text = (field_tables.DOCUMENTS / page).read_text()
    assert text == field_tables.document(page, text), "rewrite it: python tests/support/field_tables.py"


@pytest.mark.parametrize(
    ("page", "bodies"),
    [
        ("openai.md", (ChatCompletionRequest, CompletionRequest)),
        ("responses.md", (ResponseRequest,)),
        ("anthropic.md", (MessagesRequest, CountRequest)),
    ],
)
def test_documents_name_every_field(page: str, bodies: tuple[type[BaseModel], ...]) -> None:
    text = (field_tables.DOCUMENTS / page).read_text()
    named = {part for name in re.findall(r"`([\w.]+)`", text) for part in name.split(".")}
    assert {name for body in bodies for name in body.model_fields} - named == set()
