"""The form that a job asks of its text: what clients write, what travels."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from octavo.client.requests import build_request
from octavo.dialects.openai.requests import ChatCompletionRequest
from octavo.queue import wire
from octavo.terms.errors import InvalidRequest
from octavo.terms.models import JobRequest
from octavo.terms.structured import GRAMMAR_KINDS, MAX_GRAMMAR_BYTES, Grammar

SCHEMA = {"type": "object", "properties": {"size": {"type": "integer"}, "name": {"type": "string"}}}
TEXT = json.dumps(SCHEMA)
TOO_LONG = "a" * (MAX_GRAMMAR_BYTES + 1)


class Person(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"json_schema": SCHEMA}, Grammar("json_schema", TEXT)),
        ({"json_schema": TEXT}, Grammar("json_schema", TEXT)),
        ({"json_schema": Person}, Grammar("json_schema", json.dumps(Person.model_json_schema()))),
        ({"json_object": True, "regex": None}, Grammar("json_object")),
        ({"json_object": False}, None),
        ({"regex": "[0-9]+"}, Grammar("regex", "[0-9]+")),
        ({"choice": ("no", "yes")}, Grammar("choice", '["no", "yes"]')),
        ({"lark": 'start: "é"'}, Grammar("lark", 'start: "é"')),
        ({"grammar": Grammar("regex", "a", (7,))}, Grammar("regex", "a", (7,))),
        ({"grammar": {"kind": "choice", "text": ["ä"]}}, Grammar("choice", '["ä"]')),
        ({"grammar": {"kind": "json_schema", "text": SCHEMA, "after": [1, 2]}}, Grammar("json_schema", TEXT, (1, 2))),
    ],
    ids=str,
)
def test_spellings_of_clients(fields: Any, grammar: Grammar | None) -> None:
    request = build_request("x", model="demo", **fields)
    assert request.grammar == grammar
    assert wire.decode_request(wire.encode_request(request)) == request
    assert JobRequest.model_validate_json(request.model_dump_json()) == request


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"json_schema": SCHEMA, "regex": "a"}, "grammar"),
        ({"grammar": Grammar("json_object"), "choice": ["a"]}, "grammar"),
        ({"json_object": 1}, "json_object"),
        ({"json_schema": {"a": {1}}}, "json_schema"),
        ({"choice": 3}, "choice"),
        ({"regex": ""}, "grammar"),
        ({"regex": TOO_LONG}, "grammar"),
        ({"grammar": {"kind": "yaml"}}, "grammar.kind"),
        ({"grammar": {"kind": "regex", "text": "a", "more": 1}}, "grammar.more"),
        ({"grammar": {"kind": "json_object", "text": "{}"}}, "grammar"),
        ({"grammar": {"kind": "regex", "text": "a", "after": [-1]}}, "grammar"),
        ({"grammar": {"kind": "regex", "text": "a", "after": [1] * 17}}, "grammar"),
        ({"grammar": {"kind": "regex", "text": ["a"]}}, "grammar.text"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_refused_names_its_field(fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_request("x", model="demo", **fields)
    assert caught.value.param == param


@given(
    st.builds(
        Grammar, st.sampled_from(sorted(set(GRAMMAR_KINDS) - {"json_object"})), st.text(min_size=1), st.just((3,))
    )
)
def test_a_grammar_travels_as_it_is(grammar: Grammar) -> None:
    request = JobRequest(model="demo", prompt="x", grammar=grammar)
    assert wire.decode_request(wire.encode_request(request)).grammar == grammar


def test_a_request_without_a_grammar_is_written_as_ever() -> None:
    assert b"grammar" not in wire.encode_request(JobRequest(model="demo", prompt="x"))


def chat(**fields: Any) -> ChatCompletionRequest:
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], **fields}
    return ChatCompletionRequest.model_validate_json(json.dumps(body))


def named(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", **fields}}


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
        ({"response_format": named(schema=SCHEMA)}, Grammar("json_schema", TEXT)),
        ({"response_format": named()}, Grammar("json_object")),
        (
            {"response_format": named(schema=SCHEMA, strict=True, description="d")},
            Grammar("json_schema", json.dumps({**SCHEMA, "additionalProperties": False})),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar("json_schema", TEXT)),
        ({"structured_outputs": {"json": TEXT, "disable_any_whitespace": True}}, Grammar("json_schema", TEXT)),
        (
            {"structured_outputs": {"json": TEXT, "disable_additional_properties": True}},
            Grammar("json_schema", json.dumps({**SCHEMA, "additionalProperties": False})),
        ),
        ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+")),
        ({"structured_outputs": {"choice": ["b", "a"]}}, Grammar("choice", '["b", "a"]')),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar("lark", 'start: "a"')),
        ({"structured_outputs": {"json_object": True}}, Grammar("json_object")),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "auto"}, Grammar("json_schema", TEXT)),
        ({"guided_json": TEXT, "response_format": {"type": "text"}}, Grammar("json_schema", TEXT)),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_choice": ["b"]}, Grammar("choice", '["b"]')),
        ({"guided_grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
    ],
    ids=str,
)
def test_every_spelling_of_a_body(fields: Any, grammar: Grammar | None) -> None:
    body = chat(**fields)
    assert body.grammar == grammar
    assert body.grammar_field == (None if grammar is None else next(name for name in fields if _asks(fields[name])))
    assert all(job.grammar == grammar for job in body.jobs())


def _asks(value: Any) -> bool:
    return not (isinstance(value, dict) and value.get("type") == "text")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        {"guided_json": SCHEMA, "guided_choice": ["a"]},
        {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
        {"structured_outputs": {"json_object": False}},
        {"structured_outputs": {"structural_tag": "x"}},
        {"response_format": {"type": "text", "json_schema": {"name": "s", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"guided_regex": TOO_LONG},
        {"structured_outputs": {"json": "{", "disable_additional_properties": True}},
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_body_asks_for_one_form(fields: Any) -> None:
    with pytest.raises(ValidationError):
        chat(**fields)
