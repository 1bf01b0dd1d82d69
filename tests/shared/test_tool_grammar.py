"""Grammars of tool calls: what a model of each family writes when it calls as asked is allowed, all else is not."""

from __future__ import annotations

import json
from functools import cache

import pytest
from chat_templates import FAMILIES
from tool_answers import ANSWERS, SCHEMA, TOOLS

from octavo.dialects.parsing import Parser
from octavo.terms.messages import AnswerFormat
from octavo.terms.structured import Grammar
from octavo.terms.tools import Tool, ToolChoice
from octavo_worker.agent.prompts.tool_grammar import ModelTokens, NoToolGrammar, answer_grammar
from octavo_worker.engine.grammar import Compiler, Matcher, Vocabulary

DATA = [Tool.model_validate(tool) for tool in TOOLS]
STRICT = [tool.model_copy(update={"strict": True}) for tool in DATA]
REQUIRED = ToolChoice(mode="required")
NAMED = ToolChoice(mode="required", name="get_weather")
OPENED = {"deepseek_v3"}


class Model:
    """A family's vocabulary and its compiler."""

    def __init__(self, name: str) -> None:
        family = FAMILIES[name]
        self.tokenizer = family.tokenizer()
        ends = [self.tokenizer.token_to_id(family.end)]
        if name == "harmony":
            ends.append(self.tokenizer.token_to_id("<|call|>"))
        rows = self.tokenizer.get_vocab_size()
        self.vocabulary = Vocabulary(self.tokenizer.to_str(), rows=rows, stop_ids=ends)
        self.compiler = Compiler(self.vocabulary, check=lambda grammar, **_: None, limit_s=60.0)
        added = {token.content: number for number, token in self.tokenizer.get_added_tokens_decoder().items()}
        self.tokens = ModelTokens(added, frozenset(ends), self.encode)
        # a model that thinks may also not: its answers have no thought here, unless its prompt began one
        self.form = AnswerFormat(family.formats[0], family.formats[1], name in OPENED)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def matcher(self, grammar: Grammar | None) -> Matcher:
        assert grammar is not None
        return self.compiler.compile(grammar)

    def accepts(self, grammar: Grammar | None, text: str) -> bool:
        """True if a whole answer obeys the grammar."""
        matcher = self.matcher(grammar)
        ids = self.encode(text)
        return matcher.accept(ids) == len(ids) and matcher.may_end


@cache
def model(name: str) -> Model:
    return Model(name)


def first_call(name: str) -> str:
    """The answer up to its first call, with what comes behind the last."""
    text = both_calls(name)
    if name == "harmony":
        return text.replace("<|channel|>commentary<|message|><|end|><|start|>assistant", "").split("<|call|>")[0]
    separators = {
        "hermes": '\n<tool_call>\n{"name": "get-news"',
        "qwen3_coder": "\n<tool_call>\n<function=get-news",
        "llama3_json": '; {"name": "get-news"',
        "mistral": ', {"name": "get-news"',
        "mistral_args": "[TOOL_CALLS]get-news",
        "deepseek_v3": "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get-news",
        "deepseek_v3_1": "<｜tool▁call▁begin｜>get-news",
        "glm4": "\n<tool_call>get-news",
        "kimi_k2": "<|tool_call_begin|>functions.get-news",
        "gemma4": "<|tool_call>call:get-news",
        "functiongemma": "<start_function_call>call:get-news",
    }
    endings = {
        "mistral": "]",
        "deepseek_v3": "<｜tool▁calls▁end｜>",
        "deepseek_v3_1": "<｜tool▁calls▁end｜>",
        "kimi_k2": "<|tool_calls_section_end|>",
    }
    before, found, _ = text.partition(separators[name])
    assert found
    return before + endings.get(name, "")


def both_calls(name: str) -> str:
    return ANSWERS[name].text.replace("Let me see.\n", "").replace("Let me see.", "")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_required_call_is_one_of_the_tools(name: str) -> None:
    tested = model(name)
    grammar = answer_grammar(tested.form, tested.tokens, tools=DATA, choice=REQUIRED)
    one = first_call(name)
    assert tested.accepts(grammar, one)
    assert not tested.accepts(grammar, one.replace("get_weather", "get_money"))
    assert not tested.accepts(grammar, one.replace("city", "town"))
    assert not tested.accepts(grammar, one.replace("3", "three"))
    assert not tested.accepts(grammar, one[: len(one) // 2])
    assert not tested.accepts(grammar, "It is warm.")
    assert not tested.accepts(grammar, "")


@pytest.mark.parametrize("name", FAMILIES)
def test_several_calls_are_allowed_unless_one_is_asked_for(name: str) -> None:
    tested = model(name)
    both, one = both_calls(name), first_call(name)
    if name != "harmony":  # whose calls end the answer
        assert tested.accepts(answer_grammar(tested.form, tested.tokens, tools=DATA, choice=REQUIRED), both)
    single = answer_grammar(tested.form, tested.tokens, tools=DATA, choice=REQUIRED, parallel=False)
    assert (tested.accepts(single, one), tested.accepts(single, both)) == (True, False)
    named = answer_grammar(tested.form, tested.tokens, tools=DATA, choice=NAMED)
    assert (tested.accepts(named, one), tested.accepts(named, both)) == (True, False)
    other = one.replace("get_weather", "get-news")
    assert not tested.accepts(named, other)
    assert tested.accepts(single, other)


@pytest.mark.parametrize("name", FAMILIES)
def test_strict_tools_leave_the_choice_to_the_model(name: str) -> None:
    tested = model(name)
    grammar = answer_grammar(tested.form, tested.tokens, tools=STRICT)
    one = first_call(name)
    said = "<|channel|>final<|message|>It is {warm}." if name == "harmony" else "It is {warm}."
    if name in OPENED:
        said = f"hm</think>{said}"
    assert tested.accepts(grammar, said)
    assert tested.accepts(grammar, one)
    assert not tested.accepts(grammar, one.replace("city", "town"))
    assert not tested.accepts(grammar, one.replace("get_weather", "get_money"))
    if ANSWERS[name].content is not None and name != "harmony":
        assert tested.accepts(grammar, ANSWERS[name].text)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_allowed_reads_as_what_was_meant(name: str) -> None:
    one = first_call(name)
    parser = Parser(*FAMILIES[name].formats, schemas={tool.name: SCHEMA for tool in DATA}, opened=name in OPENED)
    parsed = parser.parse([one])
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == [
        ("get_weather", {"city": "Rome", "days": 3})
    ]


def test_without_a_wish_there_is_no_grammar() -> None:
    tested = model("hermes")
    assert answer_grammar(tested.form, tested.tokens, tools=DATA) is None
    assert answer_grammar(tested.form, tested.tokens) is None
    content = Grammar("json_object")
    assert answer_grammar(AnswerFormat(), tested.tokens, content=content) is content


@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        (Grammar("json_object"), '{"a":[1]}', "[1]"),
        (Grammar("json_schema", json.dumps(SCHEMA)), '{"city":"Rome","days":3}', '{"city":1,"days":3}'),
        (Grammar("choice", '["yes", "n/o"]'), "n/o", "maybe"),
        (Grammar("regex", "a+/b\\/\nc"), "aa/b/\nc", "ab"),
        (Grammar("choice", '["yes", ""]'), "", "no"),
    ],
)
def test_structured_content_comes_behind_a_thought_or_gives_way_to_a_call(
    content: Grammar, good: str, bad: str
) -> None:
    hermes = model("hermes")
    for opened, before in ((False, ""), (False, "<think>hm <</think>\n\n"), (True, "hm</think>")):
        form = AnswerFormat("hermes", "think", opened)
        grammar = answer_grammar(form, hermes.tokens, tools=DATA, content=content)
        assert hermes.accepts(grammar, before + good)
        assert not hermes.accepts(grammar, before + bad)
        assert hermes.accepts(grammar, before + first_call("hermes").split("</think>\n\n")[-1])
        assert not hermes.accepts(answer_grammar(form, hermes.tokens, content=content), before + bad)
    harmony = model("harmony")
    grammar = answer_grammar(harmony.form, harmony.tokens, content=content)
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    assert harmony.accepts(grammar, f"{thought}<|channel|>final<|message|>{good}")
    assert harmony.accepts(grammar, f"<|channel|>final<|message|>{good}")
    assert not harmony.accepts(grammar, f"{thought}<|channel|>final<|message|>{bad}")


def test_what_cannot_be_asked_for_is_refused() -> None:
    tested = model("hermes")
    with pytest.raises(NoToolGrammar, match="no format for calls"):
        answer_grammar(AnswerFormat(), tested.tokens, tools=DATA, choice=REQUIRED)
    with pytest.raises(NoToolGrammar, match="aspen"):
        answer_grammar(AnswerFormat("aspen"), tested.tokens, tools=STRICT)


def test_a_format_that_only_annotates_is_no_matter() -> None:
    schema = {"type": "object", "properties": {"key": {"type": "string", "format": "password"}}, "required": ["key"]}
    tool = Tool(name="f", parameters=json.dumps(schema))
    grammar = answer_grammar(model("hermes").form, model("hermes").tokens, tools=[tool], choice=REQUIRED)
    call = '<tool_call>\n{"name": "f", "arguments": {"key": "x"}}\n</tool_call>'
    assert model("hermes").accepts(grammar, call)


def test_lark_stands_alone() -> None:
    written = Grammar("lark", 'start: "a" /b*/')
    hermes, harmony = model("hermes"), model("harmony")
    grammar = answer_grammar(hermes.form, hermes.tokens, tools=DATA, content=written)
    assert (hermes.accepts(grammar, "abb"), hermes.accepts(grammar, first_call("hermes"))) == (True, False)
    opened = answer_grammar(AnswerFormat("none", "think", True), hermes.tokens, content=written)
    assert hermes.accepts(opened, "hm, c</think>abb")
    assert not hermes.accepts(opened, "hm, c</think>cbb")
    final = answer_grammar(harmony.form, harmony.tokens, content=written)
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>"
    assert (harmony.accepts(final, f"{thought}ab"), harmony.accepts(final, f"{thought}b")) == (True, False)
    begun = Grammar("json_object", after=(7,))
    assert answer_grammar(hermes.form, hermes.tokens, tools=DATA, content=begun) is begun


NESTED = {
    "type": "object",
    "properties": {
        "where": {"$ref": "#/$defs/place"},
        "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"type": ["string", "null"]},
        "exact": {"type": "boolean"},
    },
    "required": ["where"],
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}


@pytest.mark.parametrize(
    ("name", "arguments", "allowed"),
    [
        ("gemma4", "{where:{x:1.5}}", True),
        ("gemma4", '{where:{x:1.5},unit:<|"|>C<|"|>}', True),
        ("gemma4", '{where:{x:1},tags:[<|"|>a,b<|"|>,<|"|>c<|"|>],note:null,exact:true}', True),
        ("gemma4", '{where:{x:1},note:<|"|>a<|"|>}', True),
        ("gemma4", '{where:{x:1},unit:<|"|>K<|"|>}', False),
        ("gemma4", '{unit:<|"|>C<|"|>}', False),
        ("gemma4", "{where:{x:1},exact:1}", False),
        ("gemma4", "{where:{x:1},}", False),
        ("qwen3_coder", '<parameter=where>\n{"x": 1}\n</parameter>\n', True),
        ("qwen3_coder", '<parameter=where>\n{"x": 1}\n</parameter>\n<parameter=unit>\nF\n</parameter>\n', True),
        ("qwen3_coder", '<parameter=where>\n{"x": 1}\n</parameter>\n<parameter=note>\na <b>\n\n</parameter>\n', True),
        (
            "qwen3_coder",
            '<parameter=where>\n{"x": 1}\n</parameter>\n<parameter=tags>\n["a", "b"]\n</parameter>\n',
            True,
        ),
        ("qwen3_coder", '<parameter=where>\n{"x": "1"}\n</parameter>\n', False),
        ("qwen3_coder", '<parameter=where>\n{"x": 1}\n</parameter>\n<parameter=unit>\nK\n</parameter>\n', False),
        ("qwen3_coder", "<parameter=unit>\nF\n</parameter>\n", False),
    ],
)
def test_formats_that_are_no_json_obey_the_schema(name: str, arguments: str, allowed: bool) -> None:
    tested = model(name)
    tool = Tool(name="f", parameters=json.dumps(NESTED))
    grammar = answer_grammar(AnswerFormat(name), tested.tokens, tools=[tool], choice=REQUIRED)
    before, after = {
        "gemma4": ("<|tool_call>call:f", "<tool_call|>"),
        "qwen3_coder": ("<tool_call>\n<function=f>\n", "</function>\n</tool_call>"),
    }[name]
    assert tested.accepts(grammar, before + arguments + after) is allowed


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tool_without_parameters_can_be_called(name: str) -> None:
    tested = model(name)
    tool = Tool(name="get_weather", parameters='{"type": "object", "properties": {}, "additionalProperties": false}')
    grammar = answer_grammar(AnswerFormat(name), tested.tokens, tools=[tool], choice=REQUIRED, parallel=False)
    matcher, written = tested.matcher(grammar), []
    spelled = {
        token: tested.tokenizer.decode([token], skip_special_tokens=False) for token in range(tested.vocabulary.rows)
    }
    while not matcher.may_end:  # there is one way through it, but for digits and line breaks
        mask = matcher.mask()
        allowed = [token for token in spelled if mask[token // 32] >> (token % 32) & 1]
        written.append(min(allowed, key=lambda token: (spelled[token].isspace(), -len(spelled[token]))))
        assert matcher.accept(written[-1:]) == 1
        assert len(written) < 80, tested.tokenizer.decode(written, skip_special_tokens=False)
    text = tested.tokenizer.decode(written, skip_special_tokens=False)
    reasoning = "harmony" if name == "harmony" else "none"
    (call,) = Parser(name, reasoning, schemas={"get_weather": {}}).parse([text]).calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {})


def test_a_schema_that_names_itself_has_a_grammar_of_some_depth() -> None:
    sides = {name: {"$ref": "#"} for name in ("a", "b", "c", "d", "e")}
    tool = Tool(name="f", parameters=json.dumps({"type": "object", "properties": {**sides, "x": {"type": "integer"}}}))
    for name, arguments in (
        ("gemma4", "{a:{b:{x:1}},x:2}"),
        ("qwen3_coder", '<parameter=a>\n{"b": {"x": 1}}\n</parameter>\n'),
    ):
        tested = model(name)
        grammar = answer_grammar(AnswerFormat(name), tested.tokens, tools=[tool], choice=REQUIRED)
        before, after = {
            "gemma4": ("<|tool_call>call:f", "<tool_call|>"),
            "qwen3_coder": ("<tool_call>\n<function=f>\n", "</function>\n</tool_call>"),
        }[name]
        assert tested.accepts(grammar, before + arguments + after)


@pytest.mark.parametrize("content", [Grammar("json_schema", "true"), Grammar("choice", "{}"), Grammar("choice", "[")])
def test_content_that_is_not_the_json_it_should_be_is_refused(content: Grammar) -> None:
    tested = model("hermes")
    with pytest.raises(NoToolGrammar, match="not the JSON"):
        answer_grammar(tested.form, tested.tokens, content=content)
