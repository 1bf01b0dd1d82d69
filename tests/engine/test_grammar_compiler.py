"""Grammars are compiled once, beside the engine's thread, within a time; the vocabulary guesses nothing."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from generated_schemas import allowed, unchecked
from tokenizers import Tokenizer
from waiting import STALL_S, eventually

from octavo.dialects.grammar.grammars import Grammar, GrammarError, too_slow
from octavo.dialects.grammar.trials import validate
from octavo_worker.contract.files import model_folder
from octavo_worker.engine.grammar import Compiler, Vocabulary
from octavo_worker.engine.grammar.compiler import SHARERS

FOLDER = model_folder("demo")
TEXT = (FOLDER / "tokenizer.json").read_text(encoding="utf-8")
TOKENIZER = Tokenizer.from_str(TEXT)


def vocabulary(text: str = TEXT, rows: int = 2048, stops: tuple[int, ...] = (1,)) -> Vocabulary:
    return Vocabulary(text, rows=rows, stop_ids=stops)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def test_a_grammar_is_compiled_once_whatever_it_begins_after() -> None:
    compiler = Compiler(vocabulary(), limit_s=600, check=unchecked)
    first = compiler.start(Grammar("json_object"))
    first.matcher()
    again = compiler.start(Grammar("json_object", "", (7,)))
    assert again.done
    assert len(compiler) == 1
    assert not again.matcher().may_end
    compiler.compile(Grammar("regex", "a"))
    compiler.compile(Grammar("lark", "a: A\nstart: a\nA: /a/"))
    assert len(compiler) == 3


def test_matchers_of_one_compilation_are_independent() -> None:
    compilation = Compiler(vocabulary(), limit_s=600, check=unchecked).start(Grammar("regex", "ab"))
    one, other = compilation.matcher(), compilation.matcher()
    assert one.accept(ids("a")) == 1
    assert allowed(other.mask()) != allowed(one.mask())
    assert other.taken == 0


def test_many_matchers_of_a_grammar_have_several_automata_and_the_same_masks() -> None:
    compiler = Compiler(vocabulary(), limit_s=600, check=unchecked, threads=1, automata=3, clock=lambda: 0.0)
    compilation = compiler.start(Grammar("regex", "[ab]*c"))
    assert {compilation.matcher().automata for _ in range(SHARERS)} == {0}
    for _ in range(4 * SHARERS):
        compilation.matcher()
    compiler.submit(lambda: None).result()  # behind what the thread was told before
    matchers = [compilation.matcher() for _ in range(6)]
    assert sorted(matcher.automata for matcher in matchers) == [0, 0, 1, 1, 2, 2]
    assert all(matcher.accept(ids("ab")) == len(ids("ab")) for matcher in matchers)
    assert len({matcher.mask().tobytes() for matcher in matchers}) == 1
    assert matchers[-1].copy().automata == matchers[-1].automata


def test_a_grammar_that_is_slow_to_compile_has_one_set_of_automata() -> None:
    now = iter(range(1000))
    compiler = Compiler(
        vocabulary(), limit_s=600, check=unchecked, threads=1, automata=3, clock=lambda: float(next(now))
    )
    compilation = compiler.start(Grammar("regex", "[ab]*c"))
    for _ in range(4 * SHARERS):
        compilation.matcher()
    compiler.submit(lambda: None).result()
    assert {compilation.matcher().automata for _ in range(SHARERS)} == {0}


def test_the_grammar_used_least_recently_makes_room() -> None:
    compiler = Compiler(vocabulary(), limit_s=600, check=unchecked, capacity=2)
    grammars = [Grammar("regex", text) for text in "abc"]
    kept = [compiler.start(grammar) for grammar in grammars]
    assert len(compiler) == 2
    assert [compilation.matcher().accept(ids(text)) for compilation, text in zip(kept, "abc", strict=True)] == [1, 1, 1]


def test_a_grammar_that_takes_too_long_is_refused_and_the_others_go_on() -> None:
    """With a clock and a check that the test moves: the limit passes when it says so."""
    now, go_on = [0.0], threading.Event()

    def check(grammar: Grammar, *, limit_s: float) -> None:
        assert limit_s == 5
        if grammar == Grammar("regex", "slow"):
            assert go_on.wait(STALL_S)

    compiler = Compiler(vocabulary(), limit_s=5, check=check, clock=lambda: now[0])
    slow = compiler.start(Grammar("regex", "slow"))
    eventually(lambda: slow._entry.begun is not None)
    assert not slow.done
    now[0] = 5.0
    assert slow.done
    with pytest.raises(GrammarError, match="did not compile within 5 s: make it simpler"):
        slow.matcher()
    other = compiler.start(Grammar("regex", "a"))
    while not other.done:
        time.sleep(0.01)
    assert other.matcher().accept(ids("a")) == 1
    now[0] = -STALL_S
    go_on.set()
    assert compiler.compile(Grammar("regex", "slow")).accept(ids("s")) == 1, "it is there for a later request"


def test_the_time_in_which_others_are_compiled_does_not_count() -> None:
    now, go_on = [0.0], threading.Event()

    def check(grammar: Grammar, *, limit_s: float) -> None:
        assert go_on.wait(STALL_S)

    compiler = Compiler(vocabulary(), limit_s=5, patience_s=60, threads=1, check=check, clock=lambda: now[0])
    first, second, third = (compiler.start(Grammar("regex", text)) for text in "abc")
    eventually(lambda: first._entry.begun is not None)
    now[0] = 59.0
    assert first.done
    assert not second.done
    assert not third.done
    now[0] = 60.0
    assert third.done
    with pytest.raises(GrammarError, match="did not compile"):
        third.matcher()
    now[0] = -STALL_S
    go_on.set()
    assert compiler.compile(Grammar("regex", "c")).accept(ids("c")) == 1


def test_a_compiler_that_fails_costs_its_grammar_alone() -> None:
    def check(grammar: Grammar, *, limit_s: float) -> None:
        if grammar.text == "a":
            raise RuntimeError("no grammar can be tried")

    compiler = Compiler(vocabulary(), limit_s=600, check=check)
    with pytest.raises(GrammarError, match=r"the compiler failed: .*no grammar can be tried"):
        compiler.compile(Grammar("regex", "a"))
    assert compiler.compile(Grammar("regex", "b")).accept(ids("b")) == 1


def test_a_grammar_that_was_late_is_tried_again_and_one_that_is_wrong_is_not() -> None:
    errors = [too_slow(5), GrammarError("wrong")]
    tried = []

    def check(grammar: Grammar, *, limit_s: float) -> None:
        tried.append(grammar)
        raise errors[len(tried) - 1]

    compiler = Compiler(vocabulary(), limit_s=600, check=check)
    for message in ("within 5 s", "wrong", "wrong"):
        with pytest.raises(GrammarError, match=message):
            compiler.compile(Grammar("regex", "a"))
    assert len(tried) == 2


def test_a_grammar_is_tried_in_a_process_first() -> None:
    """The automaton of a bomb goes on growing in this process if it gets there."""
    bomb = Grammar("json_schema", '{"type": "integer", "multipleOf": 9999991}')
    compiler = Compiler(vocabulary(), limit_s=STALL_S, check=_impatient)
    with pytest.raises(GrammarError, match=r"did not compile within 0\.5 s"):
        compiler.compile(bomb)
    assert Compiler(vocabulary(), limit_s=STALL_S).compile(Grammar("regex", "a")).accept(ids("a")) == 1


def _impatient(grammar: Grammar, *, limit_s: float) -> None:
    validate(grammar, limit_s=0.5)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("json_schema", '{"$ref": "http://x.test/y"}'), r"http://x.test/y.*\(at #/\$ref\)"),
        (Grammar("json_schema", '{"minLength": 3, "maxLength": 2, "type": "string"}'), "minLength .* greater than"),
        (Grammar("regex", "a{1,2}(?!b)"), "look-around"),
        (Grammar("lark", "start: <|no_such_token|>"), "unknown special token"),
        (Grammar("regex", "a{2}b{3}" * 40_000), "262144 are allowed"),
        (Grammar("json_object", "", (1,)), "cannot begin after token 1"),
        (Grammar("json_object", "", (2048,)), "cannot begin after token 2048"),
    ],
)
def test_what_cannot_be_compiled_is_refused_each_time(grammar: Grammar, message: str) -> None:
    compiler = Compiler(vocabulary(), limit_s=600, check=unchecked)
    for _ in range(2):
        with pytest.raises(GrammarError, match=message) as caught:
            compiler.compile(grammar)
        assert "<state>" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"not": {}}}}, "#/properties/a/not"),
        ({"properties": {"a": {"not": {}}, "b": {"not": {}}}}, "#/properties/a/not or #/properties/b/not"),
        (
            {"properties": {name: {"contains": {}} for name in "abcde"}},
            "#/properties/a/contains or #/properties/b/contains or #/properties/c/contains or 2 other places",
        ),
        ({"items": {"oneOf": [{"minimum": 1}, {"maximum": 2}]}}, "#/items/oneOf"),
        (
            {
                "properties": {
                    "a": {"oneOf": [{"type": "string"}, {"type": "null"}]},
                    "b": {"$ref": "#/$defs/x"},
                    "c": {"$ref": "#/$defs/x"},
                },
                "$defs": {"x": {"oneOf": [{"minimum": 1}, {"maximum": 2}]}},
            },
            "#/$defs/x/oneOf",
        ),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, "#/minProperties"),
        (
            {"patternProperties": {"ab": True, "^c": {"type": "null"}, "ef": {"type": "null"}}},
            "#/patternProperties/ab or #/patternProperties/^c",
        ),
        ({"patternProperties": {"(?!a)/b": {}}}, "#/patternProperties/(?!a)~1b"),
    ],
)
def test_a_refusal_names_where(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(GrammarError) as caught:
        validate(Grammar("json_schema", json.dumps(schema)))
    assert caught.value.place == place
    assert "while processing" not in caught.value.message


@pytest.mark.parametrize("length", [3000, 9000])
def test_a_long_chain_of_references_does_not_overflow_the_stack(length: int) -> None:
    rules = "".join(f"a{i}: a{i + 1}\n" for i in range(length))
    matcher = Compiler(vocabulary(), limit_s=600, check=unchecked).compile(
        Grammar("lark", f'start: a0\n{rules}a{length}: "x"')
    )
    assert allowed(matcher.copy().mask()) == ids("x")


def test_padding_rows_stay_empty_for_any_size_of_the_head() -> None:
    for rows in (2048, 2049, 2080, 2111):
        matcher = Compiler(vocabulary(rows=rows), limit_s=600, check=unchecked).compile(Grammar("regex", "(.|\n)*"))
        assert matcher.mask().shape == ((rows + 31) // 32,)
        assert max(allowed(matcher.mask())) < 2048


@pytest.mark.parametrize("stops", [(), (2048,), (1, -1)])
def test_stop_tokens_are_never_guessed(stops: tuple[int, ...]) -> None:
    with pytest.raises(GrammarError, match="stop tokens must be ids below 2048"):
        vocabulary(stops=stops)


def test_a_stop_token_with_a_text_does_not_end_a_string_that_is_not_complete() -> None:
    """As in tokenizers whose end of turn is not marked as special."""
    described = json.loads(TEXT)
    described["added_tokens"][1]["special"] = False
    (word,) = ids("a")
    compiler = Compiler(vocabulary(json.dumps(described), stops=(1, word)), limit_s=600, check=unchecked)
    matcher = compiler.compile(Grammar("json_schema", '{"type": "string"}'))
    assert matcher.accept(ids('"b')) == 2
    assert {1, word}.isdisjoint(allowed(matcher.mask()))
    assert matcher.accept([1]) == 0
    assert matcher.accept(ids('"')) == 1
    assert set(allowed(matcher.mask())) == {1, word}


def test_added_tokens_without_a_row_are_left_out() -> None:
    described = json.loads(TEXT)
    described["added_tokens"].append({**described["added_tokens"][0], "id": 2048, "content": "<|image|>"})
    matcher = Compiler(vocabulary(json.dumps(described)), limit_s=600, check=unchecked).compile(Grammar("regex", ".*"))
    assert matcher.mask().shape == (64,)
    assert matcher.accept([2048]) == 0


def test_a_head_smaller_than_the_tokenizer_is_refused() -> None:
    with pytest.raises(GrammarError, match="no grammar can be followed with this tokenizer"):
        vocabulary(rows=1000)


def test_a_folder_without_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(GrammarError, match=f"{tmp_path.name} has no tokenizer.json"):
        Vocabulary.of_folder(tmp_path, rows=2048, stop_ids=(1,))
