"""Grammars are compiled once, beside the engine's thread, within a time; the vocabulary guesses nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from generated_schemas import allowed, unchecked
from tokenizers import Tokenizer
from waiting import STALL_S, eventually

from octavo.dialects.grammar.grammars import Grammar, GrammarError, too_slow
from octavo.dialects.grammar.trials import NotWanted, validate
from octavo.terms.errors import Busy, OctavoError
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
    compiler = Compiler(vocabulary(), limit_s=600, check=unchecked, threads=1, automata=3, clock=lambda: lambda: 0.0)
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
        vocabulary(), limit_s=600, check=unchecked, threads=1, automata=3, clock=lambda: lambda: float(next(now))
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


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, the library does not get done with grammars that begin with "held"."""
    go_on, begin = threading.Event(), Compiler._begin

    def waiting(self: Compiler, grammar: Grammar, text: str) -> Any:
        if grammar.text.startswith("held"):
            assert go_on.wait(STALL_S)
        return begin(self, grammar, text)

    monkeypatch.setattr(Compiler, "_begin", waiting)
    return go_on


def test_a_grammar_that_computes_for_too_long_is_refused_and_the_others_go_on(held: threading.Event) -> None:
    """By a clock that the test moves: the limit passes when it says so."""
    now = [1.0]
    compiler = Compiler(vocabulary(), limit_s=5, check=unchecked, clock=lambda: lambda: now[0])
    slow = compiler.start(Grammar("regex", "held"))
    eventually(lambda: slow._entry.computed is not None)
    assert not slow.done
    now[0] = 6.0
    assert slow.done
    with pytest.raises(GrammarError, match="did not compile within 5 s of a processor: make it simpler"):
        slow.matcher()
    assert compiler.compile(Grammar("regex", "a")).accept(ids("a")) == 1
    held.set()
    eventually(slow._entry.compiled.done)
    assert compiler.compile(Grammar("regex", "held")).accept(ids("h")) == 1, "it is there for a later request"


def test_a_grammar_that_is_not_computed_is_never_late(held: threading.Event) -> None:
    """Neither while it waits for its turn, nor while its trial, which has a limit of its own, is under way."""
    now, go_on = [0.0], threading.Event()

    def check(grammar: Grammar, **_: object) -> None:
        assert go_on.wait(STALL_S)

    compiler = Compiler(vocabulary(), limit_s=5, threads=1, check=check, clock=lambda: lambda: now[0])
    tried, waiting = (compiler.start(Grammar("regex", text)) for text in ("a", "b"))
    eventually(lambda: tried.has_begun)
    now[0] = 1e6
    assert not tried.done
    assert not waiting.has_begun
    assert not waiting.done
    go_on.set()
    assert waiting.matcher().accept(ids("b")) == 1


def test_what_another_worker_has_compiled_has_no_limit(held: threading.Event) -> None:
    """A stream that was begun is not given up for how fast this machine is."""
    now = [0.0]

    def check(grammar: Grammar, **_: object) -> None:
        raise too_slow(5)

    compiler = Compiler(vocabulary(), limit_s=5, check=check, clock=lambda: lambda: now[0])
    with pytest.raises(GrammarError, match="did not compile"):
        compiler.compile(Grammar("regex", "held"))
    begun = compiler.start(Grammar("regex", "held"), is_tried=True)
    eventually(lambda: begun._entry.computed is not None)
    now[0] = 1e6
    assert not begun.done
    held.set()
    assert begun.matcher().accept(ids("h")) == 1


def test_tenants_take_turns_and_what_none_waits_for_ends() -> None:
    began: list[str] = []
    dropped: list[str] = []
    go_on = threading.Event()

    def check(grammar: Grammar, *, limit_s: float, is_wanted: Callable[[], bool]) -> None:
        began.append(grammar.text)
        while grammar.text != "o" and not go_on.is_set():
            if not is_wanted():
                dropped.append(grammar.text)
                raise NotWanted
            time.sleep(0.001)

    compiler = Compiler(vocabulary(), limit_s=600, check=check)
    many = [compiler.start(Grammar("regex", text), "many") for text in "abcd"]
    eventually(lambda: len(began) == 2)
    other = compiler.start(Grammar("regex", "o"), "other")
    assert other.matcher().accept(ids("o")) == 1
    twice = compiler.start(Grammar("regex", "b"), "many")
    many[0].drop()
    many[1].drop()
    many[2].drop()
    eventually(lambda: "d" in began)
    assert (sorted(began), dropped) == (["a", "b", "d", "o"], ["a"])
    go_on.set()
    assert twice.matcher().accept(ids("b")) == 1
    assert compiler.compile(Grammar("regex", "a")).accept(ids("a")) == 1, "it may be asked for again"


def test_one_grammar_of_two_tenants_waits_in_neither_s_turn() -> None:
    go_on = threading.Event()

    def check(grammar: Grammar, **_: object) -> None:
        assert grammar.text == "same" or go_on.wait(STALL_S)

    compiler = Compiler(vocabulary(), limit_s=600, check=check)
    for text in ("a", "b", "same"):
        compiler.start(Grammar("regex", text), "many")
    assert compiler.start(Grammar("regex", "same"), "other").matcher().accept(ids("s")) == 1
    go_on.set()


def test_a_compiler_that_fails_costs_its_grammar_alone() -> None:
    def check(grammar: Grammar, **_: object) -> None:
        if grammar.text == "a":
            raise RuntimeError("no grammar can be tried")

    compiler = Compiler(vocabulary(), limit_s=600, check=check)
    with pytest.raises(GrammarError, match=r"the compiler failed: .*no grammar can be tried"):
        compiler.compile(Grammar("regex", "a"))
    assert compiler.compile(Grammar("regex", "b")).accept(ids("b")) == 1


def test_what_a_busy_machine_could_not_tell_is_tried_again_and_a_refusal_is_not() -> None:
    errors: list[OctavoError] = [Busy("no time was left"), too_slow(5)]
    tried = []

    def check(grammar: Grammar, **_: object) -> None:
        tried.append(grammar)
        raise errors[len(tried) - 1]

    compiler = Compiler(vocabulary(), limit_s=600, check=check)
    with pytest.raises(Busy, match="no time was left"):
        compiler.compile(Grammar("regex", "a"))
    for _ in range(2):
        with pytest.raises(GrammarError, match="within 5 s"):
            compiler.compile(Grammar("regex", "a"))
    assert len(tried) == 2


def test_a_grammar_is_tried_in_a_process_first() -> None:
    """The automaton of a bomb goes on growing in this process if it gets there."""
    bomb = Grammar("json_schema", '{"type": "integer", "multipleOf": 9999991}')
    compiler = Compiler(vocabulary(), limit_s=STALL_S, check=_impatient)
    with pytest.raises(GrammarError, match=r"did not compile within 0\.5 s"):
        compiler.compile(bomb)
    assert Compiler(vocabulary(), limit_s=STALL_S).compile(Grammar("regex", "a")).accept(ids("a")) == 1


def _impatient(grammar: Grammar, **_: object) -> None:
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
