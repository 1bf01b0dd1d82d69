"""A stream as a client sees it: deltas as early as they are certain, ids that never change, formats by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from generated_texts import SCHEMAS

from octavo.dialects.parsing import (
    NONE,
    REASONING_FORMATS,
    TOOL_FORMATS,
    BareArguments,
    Call,
    CallDelta,
    CallSyntax,
    ContentDelta,
    Parsed,
    Parser,
    ReasoningDelta,
    TaggedArguments,
    ends_in_thought,
    family_of,
)

CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def test_only_the_end_that_may_begin_a_marker_is_held_back():
    parser = Parser("hermes")
    assert parser.feed("a <tool") == [ContentDelta("a")]
    assert parser.feed("box> b") == [ContentDelta(" <toolbox> b")]
    assert parser.feed(" <") == []
    assert parser.finish() == [ContentDelta(" <")]


def test_a_call_begins_with_its_name_and_its_arguments_come_piece_by_piece():
    parser = Parser("hermes", job_id="g00_a")
    assert parser.feed('<tool_call>\n{"name": "get_weather", "argu') == []
    (begun,) = parser.feed('ments": {')[:1]
    assert isinstance(begun, CallDelta)
    assert (begun.index, begun.name, begun.arguments) == (0, "get_weather", "")
    assert parser.feed('"city": "Pa') == [CallDelta(0, arguments='"city": "Pa')]
    assert parser.feed('ris"}') == [CallDelta(0, arguments='ris"}')]
    assert parser.feed("}\n</tool_call>") == []
    assert parser.finish() == []


def test_strings_of_tagged_arguments_come_piece_by_piece():
    parser = Parser("qwen3_coder", schemas=SCHEMAS)
    parser.feed("<tool_call>\n<function=write_file>\n<parameter=text>\n")
    assert parser.feed('one "two') == [CallDelta(0, arguments='one \\"two')]
    assert parser.feed("\nthree\n</param") == [CallDelta(0, arguments="\\nthree")]
    assert parser.feed("eter>\n</function>\n</tool_call>") == [CallDelta(0, arguments='"}')]


def test_thoughts_come_as_they_are_thought():
    parser = Parser("hermes", "think")
    assert parser.feed("<thi") == []
    assert parser.feed("nk>\nHm") == [ReasoningDelta("Hm")]
    assert parser.feed(", rain.\n</think>") == [ReasoningDelta(", rain.")]
    assert parser.feed("\n\nYes.") == [ContentDelta("Yes.")]


def test_an_answer_in_json_is_not_held_back_for_the_sake_of_llamas_bare_calls():
    parser = Parser("llama3_json", schemas=SCHEMAS)
    assert parser.feed('{"answer": [1') == [ContentDelta('{"answer": [1')]
    assert parser.feed(", 2") == [ContentDelta(", 2")]


def test_without_tools_llamas_bare_calls_may_have_any_name():
    assert Parser("llama3_json").parse(['{"name": "other", "parameters": {}}']).calls[0].name == "other"


def test_text_of_a_model_without_formats_is_passed_on_at_once():
    parser = Parser()
    assert parser.feed("a \n") == [ContentDelta("a \n")]
    assert parser.feed("<think>") == [ContentDelta("<think>")]
    assert parser.finish() == []


def ids(tools: str, text: str, job_id: str, sequence: int = 0) -> list[str]:
    return [call.id for call in Parser(tools, job_id=job_id, sequence=sequence).parse(text).calls]


def test_ids_are_the_same_for_every_reader_and_differ_between_calls_sequences_and_jobs():
    found = [*ids("hermes", CALL + CALL, "g00_a"), *ids("hermes", CALL, "g00_a", 1), *ids("hermes", CALL, "g00_b")]
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", call_id) for call_id in found)
    assert len(set(found)) == 4
    assert ids("hermes", CALL + CALL, "g00_a") == found[:2]


def test_ids_have_the_form_that_the_template_of_the_family_takes():
    first, second = ids("mistral", '[TOOL_CALLS][{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]', "j")
    assert re.fullmatch(r"[0-9a-zA-Z]{9}", first)
    assert re.fullmatch(r"[0-9a-zA-Z]{9}", second)
    assert first != second
    assert ids("mistral_args", "[TOOL_CALLS]a[CALL_ID]abcDEF123[ARGS]{}", "j") == ["abcDEF123"]
    kimi = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    assert ids("kimi_k2", kimi.format("functions.now:3"), "j") == ["functions.now:3"]
    assert ids("kimi_k2", kimi.format("now"), "j")[0].startswith("call_")
    twice = ids("kimi_k2", kimi.format("functions.now:0") * 2, "j")
    assert twice[0] == "functions.now:0"
    assert twice[1].startswith("call_")


def test_an_unknown_format_is_an_error():
    with pytest.raises(KeyError, match="hermes9"):
        Parser("hermes9")
    with pytest.raises(KeyError, match="thoughts"):
        Parser(reasoning="thoughts")


ARGUMENTS = {"text": 'one\n"two" é', "mode": 3, "tags": ["a", "b"]}


def written(syntax: CallSyntax, arguments: dict[str, object]) -> str:
    """The arguments as a model would write them by the rules of its syntax."""
    match syntax.arguments:
        case TaggedArguments(before_key, before_value, after_value):
            return "".join(
                f"{before_key}{key}{before_value}{value if isinstance(value, str) else json.dumps(value)}{after_value}"
                for key, value in arguments.items()
            )
        case BareArguments(quote):
            values = {key: json.dumps(value).replace('"', quote) for key, value in arguments.items()}
            values["text"] = f"{quote}{arguments['text']}{quote}"
            return "{" + ",".join(f"{key}:{value}" for key, value in values.items()) + "}"
        case None:
            return json.dumps(arguments)


@pytest.mark.parametrize("tools", sorted(set(TOOL_FORMATS) - {NONE}))
def test_what_the_syntax_of_a_format_describes_is_read_by_its_parser(tools: str):
    syntax = TOOL_FORMATS[tools].syntax
    assert syntax is not None
    calls = syntax.separator.join(
        f"{syntax.before_name}write_file{syntax.before_arguments}{written(syntax, ARGUMENTS)}{syntax.after_arguments}"
        for _ in range(2)
    )
    text = f"{syntax.begin}{calls}{syntax.end}".replace("{index}", "0")
    assert text.startswith(syntax.trigger)
    parsed = Parser(tools, schemas=SCHEMAS).parse(text)
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == [("write_file", ARGUMENTS)] * 2
    assert parsed == Parsed(calls=parsed.calls)


TEMPLATES = [
    ("", NONE, NONE),
    ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}", NONE, NONE),
    (
        "<tools>{{ tools | tojson }}</tools> return <tool_call>\\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>',
        "hermes",
        NONE,
    ),
    (
        '{{ content.split(\'</think>\')[-1] }} <tool_call>\\n{"name": "\' + name + \'", "arguments": \' + args',
        "hermes",
        "think",
    ),
    (
        "<tool_call>\\n<function=example>\\n<parameter=key>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>",
        "qwen3_coder",
        NONE,
    ),
    ("{{ '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value><think>", "glm4", "think"),
    (
        '<|start_header_id|>user Respond in the format {"name": function name, "parameters": dictionary of argument '
        'name and its value}.<|eot_id|>{{ "<|python_tag|>" }}',
        "llama3_json",
        NONE,
    ),
    ('{{ "[AVAILABLE_TOOLS]" }}{{ "[TOOL_CALLS] [" }}', "mistral", NONE),
    (
        "[SYSTEM_PROMPT][THINK]{{ thought }}[/THINK][TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}",
        "mistral_args",
        "mistral",
    ),
    (
        "<think>{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '```json' }}",
        "deepseek_v3",
        "think",
    ),
    (
        "</think>{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments }}",
        "deepseek_v3_1",
        "think",
    ),
    ("<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>", "kimi_k2", NONE),
    ("<|start|>assistant<|channel|>analysis<|message|>{{ thinking }}<|end|>", "harmony", "harmony"),
    ("{{ '<|channel>thought\\n<channel|>' }}<|tool_call>call:{{ name }}<tool_call|>", "gemma4", "gemma4"),
    ("<start_function_call>call:{{ name }}{<escape>{{ value }}<escape>}<end_function_call>", "functiongemma", NONE),
    ("<|tool_call>[{{ tool_call | tojson }}]<|/tool_call>", NONE, NONE),
    ("<seed:tool_call><function={{ name }}><parameter={{ key }}></seed:tool_call>", NONE, NONE),
]


@pytest.mark.parametrize(("template", "tools", "reasoning"), TEMPLATES)
def test_the_family_of_a_model_is_recognised_by_its_template(template: str, tools: str, reasoning: str):
    assert family_of(template) == (tools, reasoning)


def test_templates_of_every_format_are_recognised():
    assert {tools for _, tools, _ in TEMPLATES} == set(TOOL_FORMATS)
    assert {reasoning for _, _, reasoning in TEMPLATES} == set(REASONING_FORMATS)


def test_a_prompt_that_ends_in_a_thought_is_seen():
    assert ends_in_thought("<|im_start|>assistant\n<think>\n", "think")
    assert ends_in_thought("[/INST][THINK]", "mistral")
    assert not ends_in_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n", "think")
    assert not ends_in_thought("<|channel>thought\n<channel|>", "gemma4")
    assert not ends_in_thought("<|start|>assistant", "harmony")
    assert not ends_in_thought("<think>", NONE)


def test_a_call_is_a_value():
    (call,) = Parser("hermes", job_id="j").parse([CALL]).calls
    assert call == Call(ids("hermes", CALL, "j")[0], "now", "{}")


def test_every_format_is_in_the_documentation_with_an_example_that_its_parser_reads():
    text = (Path(__file__).parents[2] / "docs" / "tools.md").read_text().replace("\\|", "|")
    tools, reasoning = text.split("## Formats of reasoning")
    assert re.findall(r"^\| `(\w+)` \|", tools, flags=re.MULTILINE) == none_last(TOOL_FORMATS)
    assert re.findall(r"^\| `(\w+)` \|", reasoning, flags=re.MULTILINE) == none_last(REASONING_FORMATS)
    for name, call in re.findall(r"^\| `(\w+)` \|.*?\| `(.+?)`.* \|$", tools, flags=re.MULTILINE):
        whole = call if name != "deepseek_v3" else f'{call}\n```json\n{{"a": 1}}\n```<｜tool▁call▁end｜>'
        assert [(c.name, c.arguments) for c in Parser(name).parse(whole).calls] == [("f", '{"a": 1}')], name


def none_last(formats: dict[str, Any]) -> list[str]:
    """The names in their order, none last."""
    return [*(name for name in formats if name != NONE), NONE]
