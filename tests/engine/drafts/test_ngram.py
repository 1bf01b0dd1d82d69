"""The n-gram proposer against a search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.engine.drafts import NgramProposer
from octavo_worker.engine.drafts.gram_index import OCCURRENCES, GramIndex, Match

texts = st.lists(st.integers(0, 2), max_size=40)
large_ids = st.lists(st.sampled_from([0, 1, 2**16, 2**24, 2**31]), max_size=40)


def searched(text: list[int], begun: int, window: int, *, least: int, most: int, count: int) -> list[int]:
    """Tokens behind the latest occurrence of the longest run, found by looking everywhere. `begun` tokens were there at
    the beginning."""
    known = [*range(max(0, begun - window), begun), *range(max(begun, len(text) - window), len(text))]
    places = [place for place in known if least <= place and text[place - least : place] == text[-least:]]
    places = places[-OCCURRENCES:] if len(text) >= least else []
    for length in range(min(most, len(text)), least - 1, -1):
        for place in reversed(places):
            if place >= length and text[place - length : place] == text[-length:]:
                whole = list(text)
                for _ in range(count):
                    whole.append(whole[place + len(whole) - len(text)])
                return whole[len(text) :]
    return []


@given(
    prompt=texts | large_ids,
    output=texts | large_ids | st.lists(st.integers(0, 1), min_size=15, max_size=30),
    lengths=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted),
    window=st.integers(1, 8) | st.just(50),
    count=st.integers(0, 9),
)
def test_proposals_are_those_of_a_search(
    prompt: list[int], output: list[int], lengths: list[int], window: int, count: int
) -> None:
    least, most = lengths
    drafter = NgramProposer(least=least, most=most, window=window).begin(prompt, [], b"")
    for place in range(len(output) + 1):
        text = [*prompt, *output[:place]]
        expected = searched(text, len(prompt), window, least=least, most=most, count=count)
        assert list(drafter.propose(count)) == expected
        drafter.append(output[place : place + 1])


@given(prompt=texts, parts=st.lists(texts, max_size=5), published=texts)
def test_proposals_depend_on_the_text_alone(prompt: list[int], parts: list[list[int]], published: list[int]) -> None:
    """Not on how it came, on what was proposed, or on which worker it began."""
    proposer = NgramProposer()
    first, second = proposer.begin(prompt, [], b"a"), proposer.begin(prompt, published, b"b")
    for token in published:
        first.append((token,))
        first.propose(3)
    for part in parts:
        assert list(first.propose(5)) == list(second.propose(5))
        second.append(part)
        for token in part:
            first.append((token,))
            first.propose(8)
    assert list(first.propose(5)) == list(second.propose(5))


@given(prompt=texts, common=texts, one=texts, other=texts, window=st.integers(1, 50))
def test_forks_do_not_see_each_other(
    prompt: list[int], common: list[int], one: list[int], other: list[int], window: int
) -> None:
    proposer = NgramProposer(window=window)

    def alone(tokens: list[int]) -> list[int]:
        drafter = proposer.begin(prompt, [], b"")
        drafter.append(common)
        drafter.append(tokens)
        return list(drafter.propose(6))

    parent = proposer.begin(prompt, [], b"")
    parent.append(common)
    child = parent.fork()
    for place in range(max(len(one), len(other))):
        parent.append(one[place : place + 1])
        child.append(other[place : place + 1])
    assert list(parent.propose(6)) == alone(one)
    assert list(child.propose(6)) == alone(other)


@given(text=st.lists(st.integers(0, 1), min_size=1, max_size=30), most=st.integers(3, 12))
def test_a_match_is_as_long_as_what_is_equal(text: list[int], most: int) -> None:
    index = GramIndex(text, least=2, most=3, window=100)
    match = index.find()
    if match is None:
        return
    lengths = range(1, min(most, match.position) + 1)
    equal = max(n for n in lengths if text[match.position - n : match.position] == text[-n:])
    assert index.widen(match, most) == Match(match.position, equal)


def test_memory_is_bounded_by_the_window() -> None:
    index = GramIndex(range(1000), least=2, most=4, window=100)
    for token in range(5000):
        index.append((token % 977,))
        assert all(len(known) <= 100 for known in (index._own, index._shared))
    long = NgramProposer(window=100).begin(range(100_000), [], b"")
    assert len(long._index.text) == 104


def test_forks_share_what_is_known_of_the_prompt() -> None:
    index = GramIndex(range(1000), least=2, most=4, window=1000)
    index.append([1, 2, 3])
    twin = index.fork()
    assert twin._shared is index._shared
    assert twin._own is not index._own


def test_nothing_new_is_guessed_and_nothing_unasked() -> None:
    drafter = NgramProposer().begin([1, 2, 3, 4, 5], [], b"")
    assert list(drafter.propose(4)) == []
    drafter.append([1, 2])
    assert list(drafter.propose(4)) == [3, 4, 5, 1]
    assert list(drafter.propose(0)) == []


@pytest.mark.parametrize("options", [{"least": 0, "most": 2}, {"least": 3, "most": 2}, {"window": 0}])
def test_what_cannot_be_indexed_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"runs of|no places"):
        NgramProposer(**options).begin([1], [], b"")
