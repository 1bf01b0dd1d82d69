"""Two tiers of tests: the quick one, which `make test` runs, and the full one, which runs all.

The mark `full` keeps a test out of the quick tier, whole or but for some of its parameters: `full` alone, `full(but=6)`
(that many parameter sets, evenly spread), `full(but="every value")` and `full(but="every pair")` (so many that each
value of each parameter, or each pair of values of two, is among them).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import pytest
from hypothesis import HealthCheck, settings

_EXAMPLES = {"quick": 10, "full": 100}
_STRENGTHS = {"every value": 1, "every pair": 2}

Pick = frozenset[tuple[str, int]]
"""Names of parameters, each with the place of its value."""


def load_profile(tier: str) -> None:
    """Settings of Hypothesis. How long an example takes says what else the machine does."""
    checks = [HealthCheck.too_slow]
    settings.register_profile(
        tier, max_examples=_EXAMPLES[tier], derandomize=tier == "quick", deadline=None, suppress_health_check=checks
    )
    settings.load_profile(tier)


def examples(count: int) -> int:
    """How many examples of Hypothesis a test takes: `count` in the full tier."""
    return count if settings.get_current_profile_name() == "full" else min(count, _EXAMPLES["quick"])


def tier_of(config: pytest.Config) -> str:
    """What `--tier` says. Without it the quick one, but a test that is named is run."""
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
    return frozenset(item.callspec.indices.items())


def cover(rows: Sequence[Pick], strength: int) -> set[int]:
    """Places of rows in which each combination of `strength` values that any row has occurs: greedy, in their order."""
    missing = [{frozenset(pick) for pick in combinations(sorted(row), min(strength, len(row)))} for row in rows]
    kept = set()
    while any(missing):
        best = max(range(len(rows)), key=lambda place: len(missing[place]))
        kept.add(best)
        found = set(missing[best])
        for left in missing:
            left -= found
    return kept
