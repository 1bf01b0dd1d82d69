"""The chat template of the bundled model: turns as it was trained on them, tools, their results, and thoughts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from chat_templates import DEMO

from octavo.dialects.parsing import family_of
from octavo.terms.models import JobRequest
from octavo_worker.agent.prompts.answer_form import EncodedPrompt
from octavo_worker.agent.prompts.tokens import PromptRejected, Prompts
from octavo_worker.agent.prompts.tool_grammar import brevity

USER = {"role": "user", "content": "What is love?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "tells the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["c", "f"]}},
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
TOLD = "<|system|><tools>\nget_weather(city, unit)\nget_time()\n</tools><|end|>"


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts(DEMO)


def encoded(prompts: Prompts, *messages: dict[str, Any], **fields: Any) -> tuple[str, EncodedPrompt]:
    found = prompts.encode(JobRequest(model="demo", messages=messages, parsed=True, **fields))
    return prompts.decode(found.ids), found


def test_its_formats_are_known() -> None:
    assert family_of((DEMO / "chat_template.jinja").read_text()) == ("hermes", "think")


def test_the_draft_and_the_training_have_the_same_template() -> None:
    source = (DEMO / "chat_template.jinja").read_text()
    assert (DEMO.parent / "demo-draft" / "chat_template.jinja").read_text() == source
    assert (DEMO.parents[2] / "demo_model" / "chat_template.jinja").read_text() == source


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([USER], "<|user|>What is love?<|end|>"),
        ([{"role": "system", "content": "JULIET"}, USER], "<|system|>JULIET<|end|><|user|>What is love?<|end|>"),
        ([{"role": "developer", "content": "JULIET"}, USER], "<|system|>JULIET<|end|><|user|>What is love?<|end|>"),
        (
            [USER, {"role": "assistant", "content": " A smoke.", "reasoning_content": "hm"}, USER],
            "<|user|>What is love?<|end|><|assistant|> A smoke.<|end|><|user|>What is love?<|end|>",
        ),
    ],
)
def test_plain_turns_are_those_of_its_training(prompts: Prompts, messages: list[dict[str, Any]], prompt: str) -> None:
    assert encoded(prompts, *messages)[0] == f"<|begin|>{prompt}<|assistant|>"


def test_tools_stand_behind_what_the_system_says(prompts: Prompts) -> None:
    juliet = {"role": "system", "content": "JULIET"}
    behind = f"{TOLD}<|user|>What is love?<|end|><|assistant|>"
    assert encoded(prompts, USER, tools=[WEATHER, TIME])[0] == f"<|begin|>{behind}"
    assert encoded(prompts, juliet, USER, tools=[WEATHER, TIME])[0] == f"<|begin|><|system|>JULIET<|end|>{behind}"


def test_calls_their_thoughts_and_their_results_are_in_the_prompt(prompts: Prompts) -> None:
    called = {"role": "assistant", "content": "Wait.", "reasoning_content": "hm", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "warm"}
    prompt, _ = encoded(prompts, USER, called, result, tools=[WEATHER])
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert f"<|assistant|><think>\nhm\n</think>\n\nWait.\n{call}<|end|>" in prompt
    assert prompt.endswith("<|user|><tool_response>\nwarm\n</tool_response><|end|><|assistant|>")


@pytest.mark.parametrize(
    ("schema", "brief"),
    [
        ({"type": "string"}, {"type": "string", "maxLength": 9}),
        ({"type": "string", "minLength": 20}, {"type": "string", "minLength": 20, "maxLength": 20}),
        ({"type": ["string", "null"], "pattern": "a+"}, {"type": ["string", "null"], "pattern": "a+"}),
        ({"type": "number"}, {"type": "integer", "minimum": 0, "maximum": 100}),
        ({"type": ["number", "null"]}, {"type": ["integer", "null"], "minimum": 0, "maximum": 100}),
        ({"type": "number", "minimum": 0.5}, {"type": "number", "minimum": 0.5}),
        (
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 4},
        ),
        (
            {"type": "object", "properties": {"type": {"type": "string", "maxLength": 3}}},
            {
                "type": "object",
                "properties": {"type": {"type": "string", "maxLength": 3}},
                "additionalProperties": False,
            },
        ),
        ({"type": "object", "additionalProperties": True}, {"type": "object", "additionalProperties": True}),
        (
            {"type": "object", "allOf": [{"type": "object", "required": ["a"]}]},
            {"type": "object", "allOf": [{"type": "object", "required": ["a"]}]},
        ),
        (
            {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}},
            {
                "anyOf": [{"type": "string", "maxLength": 9}, {"$ref": "#/$defs/a"}],
                "$defs": {"a": {"type": "string", "maxLength": 9}},
            },
        ),
        ({"enum": ["string"], "default": {"type": "string"}}, {"enum": ["string"], "default": {"type": "string"}}),
        (True, True),
    ],
)
def test_what_a_schema_leaves_open_is_bounded_and_stays_what_it_allows(schema: Any, brief: Any) -> None:
    assert brevity.brief(schema, 9) == brief


def test_its_calls_and_its_json_are_brief(prompts: Prompts) -> None:
    """It has learnt from plays, which end no string of JSON."""
    tool = json.loads(json.dumps(WEATHER))
    tool["function"]["parameters"] = schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    _, call = encoded(prompts, USER, tools=[tool], tool_choice="required")
    _, answer = encoded(prompts, USER, grammar={"kind": "json_schema", "text": json.dumps(schema)})
    for found in (call, answer):
        assert found.grammar is not None
        assert '"maxLength": 24' in found.grammar.text
        assert '"additionalProperties": false' in found.grammar.text


def test_it_makes_one_call_a_turn(prompts: Prompts) -> None:
    """A model as small as this one goes on calling where it may."""
    _, found = encoded(prompts, USER, tools=[WEATHER, TIME], tool_choice="required")
    assert found.grammar is not None
    assert "*" not in found.grammar.text.partition("\n")[0]
    assert not re.search(r"^r\d+: .*r\d+\*", found.grammar.text, flags=re.MULTILINE)
    twice = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL | {"id": "call_2"}]}
    with pytest.raises(PromptRejected, match="one call a turn"):
        encoded(prompts, USER, twice, tools=[WEATHER])


def test_a_thought_is_begun_where_one_is_asked_for(prompts: Prompts) -> None:
    prompt, found = encoded(prompts, USER, chat_template_kwargs={"enable_thinking": True})
    assert prompt.endswith("<|assistant|><think>\n")
    assert found.form.format is not None
    assert found.form.format.opened


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize(
    "asked", [{"tools": [WEATHER], "tool_choice": "required"}, {"grammar": {"kind": "json_object", "text": ""}}]
)
def test_what_must_be_written_begins_with_a_thought_only_if_the_prompt_began_it(
    prompts: Prompts, asked: dict[str, Any], thinks: bool
) -> None:
    _, found = encoded(prompts, USER, **asked, chat_template_kwargs={"enable_thinking": thinks})
    assert found.grammar is not None
    assert ("</think>" in found.grammar.text.replace("\\", "")) == thinks
    assert "<think>" not in found.grammar.text


def test_nothing_that_a_tool_is_called_becomes_a_control_token(prompts: Prompts) -> None:
    tool = json.loads(json.dumps(TIME))
    tool["function"]["parameters"] = {"type": "object", "properties": {"<|end|>": {"type": "string"}}}
    plain = encoded(prompts, USER, tools=[TIME])[1].ids
    marked = encoded(prompts, USER, tools=[tool])[1].ids
    assert marked.count(1) == plain.count(1)
