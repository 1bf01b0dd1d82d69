"""Random JSON schemas whose instances are short, and random walks through their grammars."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from octavo.dialects.grammar.grammars import Grammar
from octavo_worker.engine.grammar import Matcher

WHOLE = st.integers(-(2**53), 2**53)  # to the library numbers are floats
NAMES = st.text(st.sampled_from('abzé_ "\\/0'), min_size=1, max_size=4)
LEAVES = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "number"}, {"const": {"k": [1, "é"]}}]),
    st.tuples(st.integers(-300, 300), st.integers(0, 700)).map(
        lambda bounds: {"type": "integer", "minimum": bounds[0], "maximum": bounds[0] + bounds[1]}
    ),
    st.tuples(st.integers(0, 4), st.integers(0, 6)).map(
        lambda lengths: {"type": "string", "minLength": lengths[0], "maxLength": lengths[0] + lengths[1]}
    ),
    st.sampled_from([{"type": "string", "pattern": "^[a-f]{2,4}$"}, {"type": "string", "format": "date"}]),
    st.lists(st.one_of(NAMES, WHOLE, st.none(), st.booleans()), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    ),
)


def _arrays(children: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(children, st.integers(0, 2), st.integers(0, 2)).map(
        lambda drawn: {"type": "array", "items": drawn[0], "minItems": drawn[1], "maxItems": drawn[1] + drawn[2]}
    )


@st.composite
def _objects(draw: st.DrawFn, children: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, children, max_size=4))
    required = [name for name in properties if draw(st.booleans())]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        _arrays(children),
        _objects(children),
        st.lists(children, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=8,
)


def drawn(count: int) -> list[dict[str, Any]]:
    """Random ones, each once, the same every time."""
    found: dict[str, dict[str, Any]] = {}

    @seed(7)
    @settings(max_examples=2 * count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(SCHEMAS)
    def draw(schema: dict[str, Any]) -> None:
        found[json.dumps(schema)] = schema

    draw()
    assert len(found) >= count
    return list(found.values())[:count]


def allowed(row: np.ndarray[Any, np.dtype[np.int32]]) -> list[int]:
    """The ids of a mask."""
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def walk(matcher: Matcher, stop_ids: frozenset[int], *, seed: int, limit: int = 2000) -> list[int]:
    """Random allowed tokens, up to a stop token, which is the last, or to the limit."""
    chance, tokens = random.Random(seed), []
    while len(tokens) < limit:
        options = allowed(matcher.mask())
        stops = [token for token in options if token in stop_ids]
        token = chance.choice(stops) if stops and chance.random() < 0.5 else chance.choice(options)
        assert matcher.accept([token]) == 1
        tokens.append(token)
        if token in stop_ids:
            break
    return tokens


def unchecked(grammar: Grammar, **_: object) -> None:
    """For grammars of tests, which explode in no compiler: spares a process for each."""
