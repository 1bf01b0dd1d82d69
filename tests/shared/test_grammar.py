"""A gateway's check of a grammar without a model: whether it compiles, and where it does not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import STALL_S

from octavo.dialects.grammar.grammars import MAX_GRAMMAR_BYTES, Grammar, GrammarError, source
from octavo.dialects.grammar.keywords import INSTEAD, without_annotations
from octavo.dialects.grammar.recursion import endless_place
from octavo.dialects.grammar.trials import Trial, Trials, validate
from octavo.dialects.strict_schema import strict
from octavo.terms.errors import Busy


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", '{"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {}}}'),
        Grammar("json_object"),
        Grammar("regex", "[a-z]+@[a-z]+"),
        Grammar("choice", '["a", "\\ud83d\\ude00", "\\u007f\\n\\u0001\\"", "a"]'),
        Grammar("lark", 'start: "a" | %json {"type": "integer"}'),
    ],
)
def test_a_sound_grammar_has_no_errors(grammar: Grammar) -> None:
    assert validate(grammar, limit_s=600) == []


@pytest.mark.parametrize(
    ("kind", "text", "message", "place"),
    [
        ("json_schema", '{"type": "obj', "not a JSON object", ""),
        ("json_schema", "[]", "not a JSON object", ""),
        ("json_schema", '{"items": ' * 5000 + "{}" + "}" * 5000, "recursion limit", ""),
        ("json_schema", '{"properties": {"a/b": {"type": "objekt"}}}', "objekt", "#/properties/a~1b/type"),
        ("json_schema", '{"anyOf": [{}, {"$ref": "http://x.test/y"}]}', "http://x.test/y", "#/anyOf/1/$ref"),
        ("json_schema", '{"$ref": "#/$defs/none"}', "does not exist", "#/$ref"),
        ("json_schema", '{"items": {"type": "string", "pattern": "(?=a)b"}}', "look-around", "#/items/pattern"),
        ("json_schema", '{"x-guidance": {"no_such": 1}}', "no_such", ""),
        (
            *("json_schema", '{"properties": {"a": {"type": "no"}, "b": {"type": "no"}}}', "Invalid type: no"),
            "#/properties/a/type or #/properties/b/type",
        ),
        ("regex", "(a", "unclosed group", ""),
        ("regex", "(?<!a)b", "look-around", ""),
        ("regex", "(" * 60_000 + ")" * 60_000, "nest", ""),
        ("choice", "[]", "one or more strings", ""),
        ("choice", '["a", 1]', "one or more strings", ""),
        ("choice", '["\\ud800"]', "surrogate", ""),
        ("choice", "a", "not JSON", ""),
        ("lark", "start: a\na: nowhere", 'unknown name: "nowhere"', "line 2, column 4"),
        ("lark", 'start: "a', "lexer error", "line 1, column 10"),
        ("sql", "select 1", "sql is no kind of grammar", ""),
        ("regex", "\udc80", "surrogate", ""),
        ("regex", "é" * (MAX_GRAMMAR_BYTES // 2 + 1), "262146 bytes: 262144 are allowed", ""),
    ],
)
def test_an_unsound_grammar_is_refused_in_the_words_of_the_library(
    kind: Any, text: str, message: str, place: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        validate(Grammar(kind, text), limit_s=600)
    assert message in str(caught.value)
    assert caught.value.place == place
    assert caught.value.code == "invalid_grammar"


@pytest.mark.parametrize("name", ["password", "path", "binary", "regex", "int64", "no-such-format"])
def test_a_format_that_no_text_is_held_to_is_an_annotation(name: str) -> None:
    """Also where it stands in definitions; a property of that name, and values, are none."""
    schema = {"type": "object", "properties": {"format": {"format": name}, "a": {"$ref": "#/$defs/a"}}}
    schema |= {"$defs": {"a": {"items": [{"anyOf": [{"type": "string", "format": name}]}]}}, "required": ["format"]}
    assert validate(Grammar("json_schema", json.dumps(schema)), limit_s=600) == []
    kept = json.loads(without_annotations(json.dumps(schema)))
    assert kept["properties"] == {"format": {}, "a": {"$ref": "#/$defs/a"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"format": "password", "uniqueItems": False}},
        {"enum": [{"format": "path"}], "type": "object"},
        {"properties": {"uniqueItems": False, "propertyNames": {"type": "string"}, "format": True}},
        {"type": "string", "format": "date-time"},
        {"default": {"propertyNames": True}, "uniqueItems": True},
    ],
)
def test_values_names_and_what_forbids_something_stay(schema: Any) -> None:
    assert json.loads(without_annotations(json.dumps(schema))) == schema


def test_keywords_that_forbid_nothing_are_left_out() -> None:
    schema = {"uniqueItems": False, "items": {"propertyNames": {"type": "string"}, "properties": {"a": {"enum": [1]}}}}
    text = without_annotations(json.dumps(schema))
    assert text == '{"items": {"properties": {"a": {"enum": [1]}}}}'
    assert validate(Grammar("json_schema", json.dumps(schema)), limit_s=600) == []


REFUSED: dict[str, Any] = {
    "oneOf": [{"minimum": 1}, {"maximum": 2}],
    "uniqueItems": True,
    "propertyNames": {"pattern": "^a"},
    "not": {"type": "string"},
    "contains": {},
    "if": {},
    "dependentRequired": {"a": ["b"]},
    "unevaluatedProperties": False,
}


@pytest.mark.parametrize("keyword", REFUSED)
def test_what_cannot_be_held_to_is_refused_with_what_to_write_instead(keyword: str) -> None:
    with pytest.raises(GrammarError) as caught:
        validate(Grammar("json_schema", json.dumps({"properties": {"x": {keyword: REFUSED[keyword]}}})), limit_s=600)
    assert caught.value.message.startswith(keyword)
    assert INSTEAD[keyword] in caught.value.message
    assert caught.value.place == f"#/properties/x/{keyword}"


WRITTEN_INSTEAD: list[dict[str, Any]] = [
    {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 2}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": kind}, kind: {}}, "required": ["k"]} for kind in ("a", "b")
        ]
    },
    {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    {"enum": [["a"], ["b"], ["a", "b"]]},
    {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
    {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
]


@pytest.mark.parametrize("schema", WRITTEN_INSTEAD)
def test_what_is_to_be_written_instead_is_taken(schema: dict[str, Any]) -> None:
    assert validate(Grammar("json_schema", json.dumps(schema)), limit_s=600) == []


ITSELF = {"$ref": "#"}
LIST = {"type": "object", "properties": {"next": {"$ref": "#/$defs/l"}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": {"a": ITSELF}, "required": ["a"]}, "#/properties/a/$ref"),
        (
            {"type": "object", "properties": {"l": {"$ref": "#/$defs/l"}}, "$defs": {"l": LIST}},
            "#/$defs/l/properties/next/$ref",
        ),
        ({"type": "array", "items": ITSELF, "minItems": 1}, "#/items/$ref"),
        ({"type": "array", "prefixItems": [{}, ITSELF], "minItems": 2}, "#/prefixItems/1/$ref"),
        (ITSELF, "#/$ref"),
        ({"anyOf": [ITSELF, {"allOf": [{"type": "null"}, ITSELF]}]}, "#/anyOf/0/$ref"),
        ({"type": "object", "additionalProperties": ITSELF, "required": ["z"]}, "#/additionalProperties/$ref"),
        ({"properties": {"a/b": {"$ref": "#/properties/a~1b"}}}, "#/properties/a~1b/$ref"),
    ],
)
def test_a_schema_that_requires_itself_is_refused_with_its_place(schema: Any, place: str) -> None:
    with pytest.raises(GrammarError, match="requires itself") as caught:
        validate(Grammar("json_schema", json.dumps(schema)), limit_s=600)
    assert caught.value.place == place


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": ITSELF}},
        {"type": "object", "properties": {"a": {"anyOf": [ITSELF, {"type": "null"}]}}, "required": ["a"]},
        {"type": "array", "items": ITSELF},
        {"type": "array", "prefixItems": [{}, ITSELF], "minItems": 1},
        {"type": ["object", "null"], "properties": {"a": ITSELF}, "required": ["a"]},
        {"properties": {"a": {"type": "string"}}, "$defs": {"unused": {"$ref": "#/$defs/unused"}}},
        {"const": 1, "properties": {"a": ITSELF}, "required": ["a"], "type": "object"},
    ],
)
def test_a_schema_that_may_contain_itself_is_taken(schema: Any) -> None:
    assert endless_place(schema) is None


def test_unimplemented_keywords_may_be_warnings() -> None:
    lenient = '{"x-guidance": {"lenient": true}, "type": "array", "uniqueItems": true}'
    assert "uniqueItems" in validate(Grammar("json_schema", lenient), limit_s=600)[0]


@pytest.mark.parametrize(
    "bomb",
    [
        {"allOf": [{"type": "string", "pattern": f".*{i * 7919:x}.*"} for i in range(200)]},
        {"type": "integer", "multipleOf": 9999991},
    ],
)
def test_a_time_bomb_is_refused(bomb: Any) -> None:
    with pytest.raises(GrammarError, match=r"did not compile within 0\.5 s of a processor: make it"):
        validate(Grammar("json_schema", json.dumps(bomb)), limit_s=0.5)


@pytest.mark.full
def test_a_bomb_of_memory_ends_its_own_process_only() -> None:
    """With less memory than a trial has, so that it is soon used up."""
    program = "from octavo.dialects.grammar import trial as t; t.MEMORY_BYTES = t.STACK_BYTES + (300 << 20); t.main()"
    bomb = source(Grammar("json_schema", '{"type": "integer", "multipleOf": 9999991}')).encode()
    sent = len(bomb).to_bytes(4, "big") + bomb
    done = subprocess.run(
        [sys.executable, "-c", program], input=sent, capture_output=True, timeout=STALL_S, check=False
    )
    assert done.returncode < 0


def test_one_process_tries_many_grammars_and_another_takes_over_where_it_ended() -> None:
    with Trials() as trials:
        for text in ("a", "b", "c"):
            assert trials.validate(Grammar("regex", text), limit_s=600) == []
        (trial,) = trials._idle
        assert trial.uses == 3
        with pytest.raises(GrammarError, match="did not compile"):
            trials.validate(Grammar("json_schema", '{"type": "integer", "multipleOf": 9999991}'), limit_s=0.5)
        assert trials._idle == []
        assert trials.validate(Grammar("regex", "d"), limit_s=600) == []
        trials._idle[0]._process.kill()
        assert trials.validate(Grammar("regex", "e"), limit_s=600) == []
        assert trials._idle[0].uses == 1


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("kill -ABRT $$", GrammarError, "more memory than there is for one"),
        ("echo no module >&2; exit 1", RuntimeError, "no grammar can be tried: no module"),
    ],
)
def test_a_trial_without_an_answer_is_told_from_one_that_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: type[Exception], message: str
) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(error, match=message):
        validate(Grammar("json_object"), limit_s=STALL_S)


class Looks:
    """Says that an answer is wanted, and does something at the look of a number."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        self.count, self._at, self._act = 0, at, act

    def __call__(self) -> bool:
        self.count += 1
        if self.count == self._at:
            self._act()
        return True


@pytest.fixture
def stopped() -> Iterator[tuple[Trials, Trial]]:
    """A process that has tried a grammar and was stopped then."""
    with Trials() as trials:
        trials.validate(Grammar("regex", "a"), limit_s=600)
        (trial,) = trials._idle
        trial._process.send_signal(signal.SIGSTOP)
        yield trials, trial


def test_the_time_in_which_a_compiler_is_stopped_does_not_count(stopped: tuple[Trials, Trial]) -> None:
    trials, trial = stopped
    looks = Looks(20, lambda: trial._process.send_signal(signal.SIGCONT))
    assert trials.validate(Grammar("regex", "b"), limit_s=0.5, is_wanted=looks) == []
    assert looks.count >= 20, "twice the limit of time has passed"
    assert trials._idle == [trial]


@pytest.mark.parametrize("text", ["b", "b" * 200_000])
def test_a_compiler_that_never_gets_to_compute_says_nothing_about_a_grammar(
    stopped: tuple[Trials, Trial], text: str
) -> None:
    trials, _ = stopped
    with pytest.raises(Busy, match="no time was left"):
        trials.validate(Grammar("choice", json.dumps([text])), limit_s=600, patience_s=0.2)
    assert trials.validate(Grammar("regex", "c"), limit_s=600) == []


def test_a_compiler_that_something_else_ends_says_nothing_about_a_grammar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho x >> $0.count\nkill -KILL $$\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(Busy, match="ended by something else"):
        validate(Grammar("json_object"), limit_s=STALL_S)
    assert (tmp_path / "python.count").read_text() == 3 * "x\n"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(Busy, match="no process can be started"):
        validate(Grammar("json_object"), limit_s=STALL_S)


@pytest.mark.parametrize("length", [1000, 6000])
def test_a_long_chain_of_references_does_not_overflow_the_stack(length: int) -> None:
    links = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(length)}
    chain = {"$ref": "#/$defs/0", "$defs": {**links, str(length): {"type": "string"}}}
    assert validate(Grammar("json_schema", json.dumps(chain)), limit_s=600) == []


CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "object"}, {"type": "object", **CLOSED}),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}, **CLOSED}),
        ({"type": ["object", "null"]}, {"type": ["object", "null"], **CLOSED}),
        ({"type": "object", "additionalProperties": True}, {"type": "object", "additionalProperties": True}),
        ({"items": {"type": "object"}}, {"items": {"type": "object", **CLOSED}}),
        ({"$defs": {"a": {"type": "object"}}}, {"$defs": {"a": {"type": "object", **CLOSED}}}),
        ({"anyOf": [{"type": "object"}, {}]}, {"anyOf": [{"type": "object", **CLOSED}, {}]}),
        ({"allOf": [{"type": "object"}]}, {"allOf": [{"type": "object", **CLOSED}]}),
        ({"const": {"type": "object"}}, {"const": {"type": "object"}}),
        ({"enum": [{"properties": {}}]}, {"enum": [{"properties": {}}]}),
        (
            {"properties": {"type": {"type": "object"}}},
            {"properties": {"type": {"type": "object", **CLOSED}}, **CLOSED},
        ),
    ],
)
def test_strict_closes_every_object_that_does_not_say_otherwise(given: Any, expected: Any) -> None:
    assert json.loads(strict(json.dumps(given))) == expected
    assert json.loads(strict(json.dumps(expected))) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}, {"type": "object"}]},
        {"allOf": [{"$ref": "#/$defs/p"}, {"type": "object"}], "$defs": {"p": {"properties": {"a": {}}}}},
        {"properties": {"a": {}}, "$ref": "#/$defs/p", "$defs": {"p": {"type": "object"}}},
    ],
)
def test_strict_leaves_objects_open_that_are_described_in_parts(given: Any) -> None:
    assert json.loads(strict(json.dumps(given))) == given


def test_strict_keeps_the_order_of_members() -> None:
    text = '{"type": "object", "properties": {"b": {}, "a": {}}, "required": ["é"]}'
    assert strict(text) == text.removesuffix("}") + ', "additionalProperties": false}'


def test_strict_refuses_what_is_no_json() -> None:
    with pytest.raises(GrammarError, match="not JSON"):
        strict("{")
