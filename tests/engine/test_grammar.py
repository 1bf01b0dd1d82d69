"""Matchers: what they allow obeys the grammar, and their state depends on the grammar and the tokens alone."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from generated_schemas import SCHEMAS, allowed, unchecked, walk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples
from tokenizers import Tokenizer

from octavo.dialects.grammar.grammars import Grammar, GrammarError
from octavo_worker.contract.files import model_folder
from octavo_worker.engine.grammar import Compiler, Matcher, Together, Vocabulary

FOLDER = model_folder("demo")
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
ROWS, STOPS = 2100, frozenset({1, 4})  # 52 rows of padding, and a last word that is not full
UNHURRIED = settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
THOUGHT = (11, 12)


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(Vocabulary.of_folder(FOLDER, rows=ROWS, stop_ids=STOPS), limit_s=600, check=unchecked)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def text_of(tokens: list[int]) -> str:
    return TOKENIZER.decode([token for token in tokens if token not in STOPS], skip_special_tokens=False)


def schema(value: Any, after: tuple[int, ...] = ()) -> Grammar:
    return Grammar("json_schema", json.dumps(value), after)


def grammars() -> st.SearchStrategy[Grammar]:
    """Grammars of any kind, some of them after a thought."""
    others = st.sampled_from(
        [
            Grammar("regex", "(ab|c){1,4}é?"),
            Grammar("choice", '["yes", "yesterday", "no"]'),
            Grammar("lark", 'start: "f(" ("a" | "b") ("," ("a" | "b"))~0..3 ")"'),
        ]
    )
    return st.builds(
        lambda grammar, after: Grammar(grammar.kind, grammar.text, after),
        st.one_of(SCHEMAS.map(schema), others),
        st.sampled_from([(), (7,), THOUGHT]),
    )


def walked(compiler: Compiler, grammar: Grammar, seed: int) -> tuple[list[int], list[Any]]:
    """Random tokens that obey the grammar, and the masks before each of them."""
    matcher = begun = compiler.compile(grammar)
    begun.accept(grammar.after)
    tokens = [*grammar.after, *walk(begun.copy(), STOPS, seed=seed)]
    matcher, masks = compiler.compile(grammar), []
    for token in tokens:
        masks.append(matcher.mask())
        assert matcher.accept([token]) == 1
    return tokens, masks


@UNHURRIED
@given(SCHEMAS, st.integers(0, 2**32))
def test_every_finished_output_parses_and_obeys_the_schema(compiler: Compiler, value: Any, seed: int) -> None:
    tokens = walk(compiler.compile(schema(value)), STOPS, seed=seed)
    assert tokens[-1] in STOPS
    text = text_of(tokens)
    jsonschema.validate(json.loads(text), value, format_checker=jsonschema.FormatChecker())


@UNHURRIED
@given(grammars(), st.integers(0, 2**32), st.data())
def test_a_takeover_after_any_token_has_the_same_masks(
    compiler: Compiler, grammar: Grammar, seed: int, data: st.DataObject
) -> None:
    tokens, masks = walked(compiler, grammar, seed)
    cut = data.draw(st.integers(0, len(tokens) - 1))
    heir = compiler.compile(grammar)
    assert heir.accept(tokens[:cut]) == cut
    for token, mask in zip(tokens[cut:], masks[cut:], strict=True):
        assert np.array_equal(heir.mask(), mask)
        heir.accept([token])


@UNHURRIED
@given(grammars(), st.integers(0, 2**32), st.data())
def test_rollback_is_as_if_the_tokens_had_never_come(
    compiler: Compiler, grammar: Grammar, seed: int, data: st.DataObject
) -> None:
    tokens, masks = walked(compiler, grammar, seed)
    matcher, at = compiler.compile(grammar), 0
    for _ in range(4):
        end = data.draw(st.integers(at, len(tokens)))
        assert matcher.accept(tokens[at:end]) == end - at
        at = data.draw(st.integers(0, end))
        matcher.rollback(end - at)
        assert matcher.taken == at
        assert matcher.may_end == (at == len(tokens) or not STOPS.isdisjoint(allowed(masks[at])))
        if at < len(tokens):
            assert np.array_equal(matcher.mask(), masks[at])


@UNHURRIED
@given(grammars(), st.integers(0, 2**32), st.data())
def test_forks_are_independent(compiler: Compiler, grammar: Grammar, seed: int, data: st.DataObject) -> None:
    tokens, masks = walked(compiler, grammar, seed)
    cut = data.draw(st.integers(0, len(tokens) - 1))
    trunk = compiler.compile(grammar)
    trunk.accept(tokens[:cut])
    branch = trunk.copy()
    walk(branch, STOPS, seed=seed + 1, limit=20)
    assert np.array_equal(trunk.mask(), masks[cut])
    trunk.accept(tokens[cut:])
    branch.rollback(branch.taken - cut)
    assert np.array_equal(branch.mask(), masks[cut])


@UNHURRIED
@given(grammars(), st.integers(0, 2**32), st.data())
def test_a_draft_is_valid_up_to_the_first_token_that_a_mask_forbids(
    compiler: Compiler, grammar: Grammar, seed: int, data: st.DataObject
) -> None:
    tokens, masks = walked(compiler, grammar, seed)
    wrong = data.draw(st.integers(0, len(tokens) - 1))
    forbidden = sorted(set(range(-1, ROWS + 40)) - set(allowed(masks[wrong])))
    draft = [*tokens[:wrong], data.draw(st.sampled_from(forbidden)), *tokens[wrong:]]
    matcher = compiler.compile(grammar)
    assert matcher.valid_prefix(draft) == wrong
    assert matcher.taken == 0
    assert matcher.valid_prefix([*tokens, tokens[-1]]) == len(tokens), "nothing follows a stop token"
    assert matcher.accept(draft) == wrong
    assert np.array_equal(matcher.mask(), masks[wrong]), "a refused token leaves no trace"
    assert matcher.accept(tokens[wrong:]) == len(tokens) - wrong


@UNHURRIED
@given(grammars(), st.integers(0, 2**32))
def test_stop_tokens_are_allowed_exactly_where_the_text_is_complete(
    compiler: Compiler, grammar: Grammar, seed: int
) -> None:
    tokens, _ = walked(compiler, grammar, seed)
    matcher = compiler.compile(grammar)
    for token in tokens:
        stops = STOPS.intersection(allowed(matcher.mask()))
        assert stops in (STOPS, set())
        assert bool(stops) == matcher.may_end
        assert not matcher.is_finished or set(allowed(matcher.mask())) == STOPS
        matcher.accept([token])
    assert matcher.may_end
    assert matcher.is_finished


def test_a_mask_has_no_bits_for_padding(compiler: Compiler) -> None:
    for grammar in (Grammar("regex", ".*"), Grammar("regex", "(.|\n)*"), Grammar("json_object", "", THOUGHT)):
        assert max(allowed(compiler.compile(grammar).mask())) < TOKENIZER.get_vocab_size()


def test_a_regex_matches_the_whole_text(compiler: Compiler) -> None:
    matcher = compiler.compile(Grammar("regex", "[ab]{2,3}"))
    assert matcher.accept(ids("a")) == 1
    assert not matcher.may_end
    assert matcher.accept(ids("b")) == 1
    assert matcher.may_end
    assert not matcher.is_finished
    assert matcher.accept(ids("a")) == 1
    assert matcher.is_finished


@UNHURRIED
@given(
    st.sampled_from(["[a-c]+x?", "[0-9]{3}-[^0-9a-z]{2,4}", "(é|ü|漢){1,3}", "(foo|bar(baz)?){2}"]),
    st.integers(0, 2**32),
)
def test_random_texts_of_a_regex_match_it(compiler: Compiler, pattern: str, seed: int) -> None:
    assert re.fullmatch(pattern, text_of(walk(compiler.compile(Grammar("regex", pattern)), STOPS, seed=seed)))


@UNHURRIED
@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=5), st.integers(0, 2**32))
def test_a_choice_is_one_of_its_strings(compiler: Compiler, choices: list[str], seed: int) -> None:
    tokens = walk(compiler.compile(Grammar("choice", json.dumps(choices))), STOPS, seed=seed)
    assert text_of(tokens) in choices
    for choice in choices:
        matcher = compiler.compile(Grammar("choice", json.dumps(choices)))
        spelled = ids(choice)
        assert matcher.accept(spelled) == len(spelled)
        assert matcher.may_end


def test_lark_may_hold_json_and_special_tokens(compiler: Compiler) -> None:
    text = 'start: <|user|> "call " %json {"type": "object", "properties": {"n": {"const": 5}}, "required": ["n"],'
    matcher = compiler.compile(Grammar("lark", text + ' "additionalProperties": false, "x-guidance": {}}'))
    assert allowed(matcher.mask()) == [3]
    assert matcher.accept([3, *ids("call ")]) == 1 + len(ids("call "))
    jsonschema.validate(json.loads(text_of(walk(matcher, STOPS, seed=1))), {"properties": {"n": {"const": 5}}})


@pytest.mark.parametrize("seed", range(5))
def test_a_json_object_is_one(compiler: Compiler, seed: int) -> None:
    matcher = compiler.compile(Grammar("json_object"))
    assert matcher.accept(ids("[")) == 0
    tokens = ids('{"a":{"b":[1,2.5,null,true]},"é":"x\\n"')
    assert matcher.accept(tokens) == len(tokens)
    assert matcher.accept(ids("}")) == 1
    assert matcher.is_finished


def test_json_is_compact_unless_the_schema_asks_for_blanks(compiler: Compiler) -> None:
    value = {"type": "array", "items": {"type": "integer"}}
    assert not _takes(compiler, value, "[1, 2]")
    assert _takes(compiler, value, "[1,2]")
    assert _takes(compiler, {**value, "x-guidance": {"whitespace_flexible": True}}, "[1, 2]")


def _takes(compiler: Compiler, value: Any, text: str) -> bool:
    tokens = ids(text)
    return compiler.compile(schema(value)).accept(tokens) == len(tokens)


def test_properties_come_in_the_order_of_the_schema(compiler: Compiler) -> None:
    value = {"type": "object", "properties": {"b": {"const": 1}, "a": {"const": 2}}, "required": ["a", "b"]}
    assert _takes(compiler, value, '{"b":1,"a":2}')
    assert not _takes(compiler, value, '{"a":2,"b":1}')


@pytest.mark.parametrize(
    ("value", "good", "bad"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"éüö"'], ['"a"', '"abcd"']),
        ({"type": "array", "minItems": 1, "maxItems": 2, "items": {"const": 0}}, ["[0]", "[0,0]"], ["[]", "[0,0,0]"]),
        ({"type": "integer", "minimum": -3, "maximum": 12}, ["-3", "12"], ["-4", "13", "1.5"]),
    ],
)
def test_lengths_and_bounds_hold(compiler: Compiler, value: Any, good: list[str], bad: list[str]) -> None:
    for text, right in [*((text, True) for text in good), *((text, False) for text in bad)]:
        matcher, tokens = compiler.compile(schema(value)), ids(text)
        assert (matcher.accept(tokens) == len(tokens) and matcher.may_end) == right, text


def test_before_the_grammar_begins_all_may_come_but_a_stop_token(compiler: Compiler) -> None:
    matcher = compiler.compile(Grammar("choice", '["yes"]', THOUGHT))
    everything = set(range(TOKENIZER.get_vocab_size())) - STOPS
    for token in (*ids("no, [1"), 11, 11):
        assert set(allowed(matcher.mask())) == everything
        assert not matcher.may_end
        assert not matcher.is_finished
        assert matcher.accept([token]) == 1
    assert matcher.accept([1]) == 0
    assert matcher.accept([12, *ids("yes"), 1]) == 2 + len(ids("yes"))
    assert matcher.is_finished
    assert set(allowed(matcher.mask())) == STOPS


@UNHURRIED
@given(st.lists(st.tuples(grammars(), st.integers(0, 2**32), st.integers(0, 30)), min_size=1, max_size=9), st.data())
def test_masks_that_are_computed_together_are_those_one_by_one(
    compiler: Compiler, drawn: list[tuple[Grammar, int, int]], data: st.DataObject
) -> None:
    matchers = []
    for grammar, seed, steps in drawn:
        tokens = walk(compiler.compile(grammar), STOPS, seed=seed, limit=steps)
        matchers.append(compiler.compile(grammar))
        matchers[-1].accept(tokens)
    places = data.draw(st.permutations(range(len(matchers) + 2)))[: len(matchers)]
    rows = np.full((len(matchers) + 2, matchers[0].words), 0x5A5A5A5A, np.int32)  # what was there does not matter
    assert Together(2).fill(matchers, places, rows) == [None] * len(matchers)
    for matcher, place in zip(matchers, places, strict=True):
        assert np.array_equal(rows[place], matcher.mask())
    assert (rows[[place for place in range(len(rows)) if place not in places]] == 0x5A5A5A5A).all()


def test_rows_of_the_wrong_shape_are_refused(compiler: Compiler) -> None:
    matcher = compiler.compile(Grammar("regex", "ab"))
    with pytest.raises(ValueError, match="contiguous rows"):
        Together(2).fill([matcher], [0], np.zeros((1, matcher.words + 1), np.int32))


def test_a_row_of_the_wrong_shape_is_refused(compiler: Compiler) -> None:
    matcher = compiler.compile(Grammar("json_object"))
    words = compiler.vocabulary.words
    for row in (np.zeros(words + 1, np.int32), np.zeros(words, np.int64), np.zeros(2 * words, np.int32)[::2]):
        with pytest.raises(ValueError, match="contiguous row"):
            matcher.fill(row)  # type: ignore[arg-type]


def test_more_tokens_than_were_taken_cannot_be_taken_back(compiler: Compiler) -> None:
    matcher = compiler.compile(Grammar("json_object"))
    matcher.accept(ids("{"))
    with pytest.raises(ValueError, match="1 were accepted"):
        matcher.rollback(2)


def test_a_state_that_nothing_can_follow_is_an_error() -> None:
    """A vocabulary without the digits, so that a number cannot be written."""
    described = json.loads((FOLDER / "tokenizer.json").read_text())
    described["model"]["vocab"] = {
        text: id for text, id in described["model"]["vocab"].items() if not set("9") & set(text)
    }
    described["model"]["merges"] = []
    vocabulary = Vocabulary(json.dumps(described), rows=ROWS, stop_ids=STOPS)
    matcher = Compiler(vocabulary, limit_s=600, check=unchecked).compile(Grammar("regex", "a9"))
    assert isinstance(matcher, Matcher)
    matcher.accept(ids("a"))
    with pytest.raises(GrammarError):
        matcher.mask()
    fine = Compiler(vocabulary, limit_s=600, check=unchecked).compile(Grammar("regex", "ab"))
    first, second = Together(2).fill([matcher, fine], [0, 1], np.zeros((2, fine.words), np.int32))
    assert isinstance(first, GrammarError)
    assert second is None
