"""The masks of a step, handled at once, are those of each sample by itself."""

from __future__ import annotations

import json

import numpy as np
from followed import COMPILER, FOLDER, PERSON, STOPS, VOCAB, schema
from generated_schemas import SCHEMAS, allowed, unchecked, walk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from octavo.dialects.grammar.grammars import Grammar
from octavo_worker.engine.grammar import Barred, Compiler, Vocabulary, bar_all

UNHURRIED = settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
WIDTH = 70  # ids of a small vocabulary
GRAMMARS = st.one_of(
    st.sampled_from([PERSON, Grammar("regex", "[a-z ]{0,9}"), Grammar("choice", '["a", "ab"]', (7,))]),
    SCHEMAS.map(schema),
)


def row_of(tokens: set[int]) -> np.ndarray:
    words = [sum(1 << token % 32 for token in tokens if token // 32 == word) for word in range(-(-WIDTH // 32))]
    return np.array(words, np.uint32).view(np.int32)


def tokens_of(row: np.ndarray) -> set[int]:
    return {token for token in range(WIDTH) if int(row[token // 32]) >> token % 32 & 1}


SETS = st.sets(st.integers(0, WIDTH - 1), max_size=6)


@given(st.lists(st.tuples(SETS.filter(bool), SETS), min_size=1, max_size=5), st.data())
def test_barred_tokens_go_unless_nothing_else_is_left(
    drawn: list[tuple[set[int], set[int]]], data: st.DataObject
) -> None:
    places = data.draw(st.permutations(range(len(drawn))))
    rows = np.zeros((len(drawn), len(row_of(set()))), np.int32)
    for place, (mask, _) in zip(places, drawn, strict=True):
        rows[place] = row_of(mask)
    bar_all([Barred(barred) for _, barred in drawn], places, rows)
    assert [tokens_of(rows[place]) for place in places] == [mask - barred or mask for mask, barred in drawn]


@UNHURRIED
@given(GRAMMARS, st.integers(0, 2**32), st.integers(0, 30), st.integers(-1, VOCAB + 40))
def test_taking_a_token_is_accepting_it(grammar: Grammar, seed: int, steps: int, other: int) -> None:
    """Wherever the text is, what may come and what may not, stop tokens and ids that are no token."""
    matcher = COMPILER.compile(grammar)
    matcher.accept(walk(COMPILER.compile(grammar), STOPS, seed=seed, limit=steps))
    for token in (other, *STOPS, allowed(matcher.mask())[seed % len(allowed(matcher.mask()))]):
        one, two = matcher.copy(), matcher.copy()
        assert one.take(token) == (two.accept((token,)) == 1)
        assert one.taken == two.taken
        if not one.is_finished:
            assert np.array_equal(one.mask(), two.mask())


def test_slices_change_no_mask() -> None:
    """Along texts with strings that are as long as they may be."""
    text = (FOLDER / "tokenizer.json").read_text(encoding="utf-8")
    plain = Vocabulary(text, rows=VOCAB, stop_ids=STOPS)
    plain.library = plain.library.with_slices([])
    compiler = Compiler(plain, limit_s=600, check=unchecked)
    for length in (1, 2, 4, 7, 12, 20, 40):
        grammar = Grammar(
            "json_schema", json.dumps({"type": "array", "items": {"type": "string", "maxLength": length}})
        )
        for seed in range(4):
            one, two = COMPILER.compile(grammar), compiler.compile(grammar)
            for token in walk(COMPILER.compile(grammar), STOPS, seed=seed, limit=60):
                assert np.array_equal(one.mask(), two.mask())
                assert one.take(token)
                assert two.take(token)
