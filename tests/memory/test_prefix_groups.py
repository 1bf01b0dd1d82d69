"""Groups of sequences with equal leading blocks."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from octavo_worker.memory.prefix_groups import PrefixGroups

CHUNK, BLOCK = 2, 16
TOKENS = CHUNK * BLOCK


def grouped(tables: dict[str, list[int]], least_saving: int = 1) -> list[tuple[set[str], int]]:
    groups = PrefixGroups(CHUNK, BLOCK, least_saving)
    for key, table in tables.items():
        groups.add(key, table, len(table) * BLOCK)
    numbers, prefixes = groups.lists(tables)
    assert set(numbers) - {-1} == set(range(len(prefixes)))
    found = [({key for key, n in zip(tables, numbers, strict=True) if n == i}, p) for i, p in enumerate(prefixes)]
    return sorted(found, key=lambda group: sorted(group[0]))


def test_what_is_shared_up_to_whole_chunks() -> None:
    tables = {"a": [1, 2, 3, 4, 5], "b": [1, 2, 3, 4, 6], "c": [1, 2, 3, 7, 8], "d": [9, 2, 3, 4], "e": []}
    assert grouped({key: tables[key] for key in "abde"}) == [({"a", "b"}, 2 * TOKENS)]
    # Two share two chunks, or three share one: both save two chunks.
    assert sum((len(members) - 1) * tokens for members, tokens in grouped(tables)) == 2 * TOKENS


def test_a_deep_group_leaves_the_others_to_a_shallow_one() -> None:
    tables = {f"deep {i}": [1, 2, *range(3, 13), 100 + i] for i in range(3)}
    tables |= {f"shallow {i}": [1, 2, 200 + i, 200 + i] for i in range(3)}
    deep, shallow = grouped(tables)
    assert deep == ({"deep 0", "deep 1", "deep 2"}, 6 * TOKENS)
    assert shallow == ({"shallow 0", "shallow 1", "shallow 2"}, TOKENS)


def test_deep_groups_win_over_a_shallow_one() -> None:
    tables = {f"{half}{i}": [1, 2, *range(half * 10, half * 10 + 6), 100 + i] for half in (1, 2) for i in range(3)}
    assert grouped(tables) == [({"10", "11", "12"}, 4 * TOKENS), ({"20", "21", "22"}, 4 * TOKENS)]


def test_a_group_that_saves_too_little_is_none() -> None:
    tables = {"a": [1, 2, 3, 4], "b": [1, 2, 3, 4], "c": [5, 6], "d": [5, 6]}
    assert grouped(tables, least_saving=TOKENS + 1) == [({"a", "b"}, 2 * TOKENS)]


def test_only_stored_tokens_count() -> None:
    groups = PrefixGroups(CHUNK, BLOCK)
    groups.add("a", [1, 2, 3, 4], 4 * BLOCK)
    groups.add("b", [1, 2, 3, 4], 4 * BLOCK - 1)
    assert groups.lists(["a", "b"]) == ([0, 0], [TOKENS])


def test_leaving_and_coming_back() -> None:
    groups = PrefixGroups(CHUNK, BLOCK)
    for key in "abc":
        groups.add(key, [1, 2, 3], 3 * BLOCK)
    groups.discard("b")
    groups.discard("unknown")
    assert groups.lists("abc") == ([0, -1, 0], [TOKENS])
    groups.discard("a")
    assert groups.lists("abc") == ([-1, -1, -1], [])
    groups.add("b", [1, 2, 4], 3 * BLOCK)
    assert groups.lists("abc") == ([-1, 0, 0], [TOKENS])
    with pytest.raises(ValueError, match="'b' is here already"):
        groups.add("b", [1, 2], 2 * BLOCK)
    assert len(groups) == 2


def test_many_forks_in_a_row() -> None:
    """Each sequence goes one chunk further than the one before: recursion must not follow."""
    tables = {str(i): list(range(1, CHUNK * i + 1)) for i in range(1, 1200)}
    groups = grouped(tables)
    assert all(len(tables[key]) * BLOCK >= tokens for members, tokens in groups for key in members)
    assert saving(groups) > 0


def test_a_very_long_prefix() -> None:
    table = list(range(1, 20_001))
    assert grouped({"a": table, "b": table}) == [({"a", "b"}, 10_000 * TOKENS)]


def saving(groups: list[tuple[set[str], int]]) -> int:
    return sum((len(members) - 1) * tokens for members, tokens in groups)


def shared(one: list[int], other: list[int]) -> int:
    """Tokens of whole chunks that two tables have in common."""
    same = next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    return same // CHUNK * TOKENS


def best(keys: tuple[str, ...], tables: dict[str, list[int]]) -> int:
    """The most that any division into groups saves, by trying all."""
    if not keys:
        return 0
    first, *rest = keys
    result = 0
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            prefix = min((shared(tables[first], tables[o]) for o in others), default=0)
            left = tuple(key for key in rest if key not in others)
            result = max(result, size * prefix + best(left, tables))
    return result


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.lists(st.integers(1, 2), max_size=7), max_size=6))
def test_no_division_saves_more(lists: list[list[int]]) -> None:
    """Block ids are made so that equal ones mean equal beginnings, as in a prefix cache."""
    names: dict[tuple[int, ...], int] = {}
    tables = {
        str(i): [names.setdefault(tuple(path[: n + 1]), len(names) + 1) for n in range(len(path))]
        for i, path in enumerate(lists)
    }
    found = grouped(tables)
    assert saving(found) == best(tuple(tables), tables)
    for members, tokens in found:
        assert all(shared(tables[a], tables[b]) >= tokens > 0 for a, b in combinations(members, 2))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 3)), max_size=60))
def test_history_does_not_matter(steps: list[tuple[bool, int, int]]) -> None:
    """After any coming and going the groups are those of a fresh start."""
    groups, here = PrefixGroups(CHUNK, BLOCK), dict[int, list[int]]()
    for joins, key, kind in steps:
        if joins and key not in here:
            here[key] = [1, 2, *[3 + kind // 2] * 2, *[7 + kind] * 2, 20 + key]
            groups.add(key, here[key], len(here[key]) * BLOCK)
        else:
            groups.discard(key)
            here.pop(key, None)
        groups.lists(here)
    fresh = PrefixGroups(CHUNK, BLOCK)
    for key, table in here.items():
        fresh.add(key, table, len(table) * BLOCK)

    def division(which: PrefixGroups) -> set[tuple[frozenset[int], int]]:
        numbers, prefixes = which.lists(here)
        return {(frozenset(k for k, n in zip(here, numbers, strict=True) if n == i), p) for i, p in enumerate(prefixes)}

    assert division(groups) == division(fresh)
