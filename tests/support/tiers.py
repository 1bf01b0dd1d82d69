"""Tiers of tests: the quick one, which `make test` runs, the full one, which runs all, and one to leave running, which
runs state machines and other properties of memory for longer.

The mark `full` keeps a test out of the quick tier, whole or but for some of its parameters: `full` alone, `full(but=6)`
(that many parameter sets, evenly spread), `full(but="every value")` and `full(but="every pair")` (so many that each
value of each parameter, or each pair of values of two, is among them).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

TIERS = ("quick", "full", "long")
_QUICK_EXAMPLES = 10
_TIMES_AS_LONG = 4
_STRENGTHS = {"every value": 1, "every pair": 2}

T = TypeVar("T")
Pick = frozenset[tuple[str, int]]
"""Names of parameters, each with the identity of its value: tests of one list of values share them."""


def load_profile(tier: str) -> None:
    """Settings of Hypothesis. How long an example takes says what else the machine does."""
    checks = [HealthCheck.too_slow]
    settings.register_profile("full", deadline=None, suppress_health_check=checks)
    settings.register_profile("long", settings.get_profile("full"))
    settings.register_profile("quick", settings.get_profile("full"), max_examples=_QUICK_EXAMPLES, derandomize=True)
    settings.load_profile(tier)


def is_full() -> bool:
    """True if all tests run."""
    return settings.get_current_profile_name() != "quick"


def size(full: int, *, quick: int) -> int:
    """How many of anything a test takes in the tier that runs."""
    return full if is_full() else min(full, quick)


def examples(full: int, *, quick: int = _QUICK_EXAMPLES) -> int:
    """How many examples of Hypothesis it takes."""
    return size(full, quick=quick)


def many_examples(full: int, *, quick: int = _QUICK_EXAMPLES) -> int:
    """How many of a property whose examples take long: of each run others are drawn, and they add up."""
    return examples(full, quick=quick) * (_TIMES_AS_LONG if settings.get_current_profile_name() == "long" else 1)


def some(values: Sequence[T], *, quick: int) -> Sequence[T]:
    """All of them in the full tier, so many in the quick one, evenly spread."""
    return [values[place] for place in sorted(_spread(len(values), size(len(values), quick=quick)))]


def only_full(values: Iterable[Any]) -> list[Any]:
    """Values of parameters, tuples of several, that are for the full tier alone."""
    tuples = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*each, marks=pytest.mark.full) for each in tuples]


def tier_of(config: pytest.Config) -> str:
    """The tier that `--tier` names. Without it the quick one, but a test that is named is run."""
    is_named = any("::" in argument for argument in config.args)
    return config.getoption("tier") or ("full" if is_named else "quick")


def beyond_quick(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The items that the full tier alone runs."""
    beyond, sampled = set(), defaultdict(list)
    for item in items:
        for mark in item.iter_markers("full"):
            if "but" in mark.kwargs:
                sampled[item.nodeid.partition("[")[0], mark.kwargs["but"]].append(item)
            else:
                beyond.add(item)
    for (_, but), alike in sampled.items():
        left = [item for item in alike if item not in beyond]
        kept = _spread(len(left), but) if isinstance(but, int) else cover([_values(i) for i in left], _STRENGTHS[but])
        beyond |= {item for place, item in enumerate(left) if place not in kept}
    return beyond


def _spread(count: int, kept: int) -> set[int]:
    return {place * count // kept for place in range(kept)}


def _values(item: pytest.Item) -> Pick:
    assert isinstance(item, pytest.Function)
    return frozenset((name, id(value)) for name, value in item.callspec.params.items())


def cover(rows: Sequence[Pick], strength: int) -> set[int]:
    """Places of rows in which each combination of `strength` values that any row has occurs: greedy, and of equals that
    whose values occur least so far."""
    missing = [{frozenset(pick) for pick in combinations(sorted(row), min(strength, len(row)))} for row in rows]
    kept, used = set[int](), Counter[tuple[str, int]]()
    while any(missing):
        best = max(
            range(len(rows)), key=lambda place: (len(missing[place]), -sum(used[value] for value in rows[place]))
        )
        kept.add(best)
        used.update(rows[best])
        found = set(missing[best])
        for left in missing:
            left -= found
    return kept
