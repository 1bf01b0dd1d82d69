"""The quick tier runs a part of the tests, in which every value and every pair of values stands that should."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from tiers import cover

SIZES = [4, 3, 6]
ROWS = [frozenset(enumerate(row)) for row in product(*map(range, SIZES))]


@pytest.mark.parametrize(("strength", "least"), [(1, 6), (2, 24)])
def test_a_cover_has_every_combination_and_few_rows(strength: int, least: int) -> None:
    kept = [ROWS[place] for place in cover(ROWS, strength)]
    found = {pick for row in kept for pick in combinations(sorted(row), strength)}
    assert found == {pick for row in ROWS for pick in combinations(sorted(row), strength)}
    assert least <= len(kept) <= least + 4


def test_a_cover_of_rows_that_leave_out_some_has_what_they_have() -> None:
    rows = [row for row in ROWS if (0, 0) not in row or (1, 0) in row]
    kept = [rows[place] for place in cover(rows, 2)]
    assert {pick for row in kept for pick in combinations(sorted(row), 2)} == {
        pick for row in rows for pick in combinations(sorted(row), 2)
    }
