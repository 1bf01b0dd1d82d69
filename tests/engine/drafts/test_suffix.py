"""The suffix proposer: what it learns of ended outputs, for how long, and for which tenant."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.engine.drafts import Drafter, NgramProposer, SuffixProposer
from octavo_worker.engine.drafts.suffix import DRAFT, MATCH, OutputStore

texts = st.lists(st.integers(0, 2), max_size=30)
outputs = st.lists(texts, max_size=6)

ANSWER = list(range(100, 160))
FILLER = list(range(1000, 1200))


def says(proposer: SuffixProposer, output: list[int], salt: bytes) -> None:
    """A sequence says something and ends; others go on until it is learned."""
    drafter = proposer.begin([], [], salt)
    drafter.append(output)
    drafter.close()
    proposer.begin([], [], salt).append([0] * len(output))


def asked(proposer: SuffixProposer, said: list[int], salt: bytes, most: int = 8) -> list[int]:
    drafter = proposer.begin([7, 8, 9], [], salt)
    drafter.append(said)
    return list(drafter.propose(most))


def test_an_answer_that_is_said_again_is_proposed() -> None:
    proposer = SuffixProposer()
    assert asked(proposer, ANSWER[:10], b"a") == []
    says(proposer, ANSWER, b"a")
    assert asked(proposer, ANSWER[:10], b"a") == ANSWER[10:18]
    assert asked(proposer, ANSWER[:3], b"a") == ANSWER[3:6]  # a draft is no longer than its match
    assert asked(proposer, ANSWER[:40], b"a", 1000) == ANSWER[40:60]
    assert asked(proposer, ANSWER[:10], b"a", 0) == []


def test_the_continuation_that_is_said_most_often_is_proposed() -> None:
    proposer = SuffixProposer()
    for ending in ([5, 5, 5], [6, 6, 6], [5, 5, 5]):
        says(proposer, [*ANSWER[:10], *ending], b"a")
    assert asked(proposer, ANSWER[5:10], b"a", 3) == [5, 5, 5]


def test_a_guess_among_many_is_none() -> None:
    proposer = SuffixProposer()
    for ending in range(20):
        says(proposer, [*ANSWER[:10], 500 + ending], b"a")
    assert asked(proposer, ANSWER[5:10], b"a") == []
    assert asked(proposer, ANSWER[5:8], b"a") == ANSWER[8:10]


def test_the_sequence_itself_is_looked_at_first() -> None:
    proposer = SuffixProposer()
    says(proposer, [1, 2, 3, 50, 51, 52], b"a")
    assert asked(proposer, [1, 2, 3, 60, 61, 62, 1, 2, 3], b"a", 3) == [60, 61, 62]


@given(mine=outputs, theirs=outputs, prompt=texts, said=texts)
def test_no_tenant_shows_in_the_drafts_of_another(
    mine: list[list[int]], theirs: list[list[int]], prompt: list[int], said: list[int]
) -> None:
    alone, beside = SuffixProposer(capacity=40), SuffixProposer(capacity=40)
    for place in range(max(len(mine), len(theirs))):
        for output in mine[place : place + 1]:
            says(alone, output, b"me")
            says(beside, output, b"me")
        for output in theirs[place : place + 1]:
            says(beside, output, b"they")
    drafters = [proposer.begin(prompt, [], b"me") for proposer in (alone, beside)]
    for token in said:
        first, second = (list(drafter.propose(5)) for drafter in drafters)
        assert first == second
        for drafter in drafters:
            drafter.append((token,))


def test_what_one_tenant_said_is_not_proposed_to_another() -> None:
    proposer = SuffixProposer()
    says(proposer, ANSWER, b"a")
    assert asked(proposer, ANSWER[:10], b"b") == []
    assert asked(proposer, ANSWER[:10], b"") == []
    assert asked(proposer, ANSWER[:10], b"a") != []


@given(prompt=texts, said=texts, most=st.integers(0, 6))
def test_without_history_it_is_the_ngram_proposer_with_shorter_drafts(
    prompt: list[int], said: list[int], most: int
) -> None:
    suffix, ngram = SuffixProposer().begin(prompt, [], b"a"), NgramProposer().begin(prompt, [], b"a")
    for token in said:
        suffix.append((token,))
        ngram.append((token,))
        own, whole = list(suffix.propose(most)), list(ngram.propose(most))
        assert own == whole[: len(own)]
        assert (own == []) == (whole == [])


@given(outputs=outputs, prompt=texts, said=texts, rest=texts)
def test_drafts_leave_no_trace_and_forks_go_their_own_ways(
    outputs: list[list[int]], prompt: list[int], said: list[int], rest: list[int]
) -> None:
    def prepared() -> tuple[SuffixProposer, Drafter]:
        proposer = SuffixProposer()
        for output in outputs:
            says(proposer, output, b"a")
        drafter = proposer.begin(prompt, [], b"a")
        drafter.append(said)
        return proposer, drafter

    (_, quiet), (_, parent) = prepared(), prepared()
    child = parent.fork()
    for token in rest:
        child.propose(5)
        child.append((token,))
        assert list(quiet.propose(5)) == list(parent.propose(5)) == list(parent.propose(5))


def test_the_oldest_output_is_forgotten_first() -> None:
    proposer = SuffixProposer(capacity=250)
    says(proposer, ANSWER, b"a")
    says(proposer, FILLER[:150], b"a")
    assert asked(proposer, ANSWER[:10], b"a") != []
    says(proposer, FILLER[150:], b"a")
    assert asked(proposer, ANSWER[1:9], b"a") == []
    assert asked(proposer, ANSWER[20:28], b"a") != []
    says(proposer, ANSWER[::-1], b"a")
    assert asked(proposer, ANSWER[20:28], b"a") == []
    assert asked(proposer, FILLER[150:158], b"a") != []


def test_the_tenant_that_came_first_is_forgotten_first() -> None:
    proposer = SuffixProposer(tenants=2)
    says(proposer, ANSWER, b"a")
    says(proposer, ANSWER, b"b")
    assert asked(proposer, ANSWER[:10], b"a") != []
    says(proposer, ANSWER, b"c")
    assert asked(proposer, ANSWER[:10], b"a") != []
    assert asked(proposer, ANSWER[:10], b"b") == []


def test_a_fork_and_a_takeover_teach_what_they_said_themselves() -> None:
    proposer = SuffixProposer()
    drafter = proposer.begin([1, 2, 3], ANSWER[:10], b"a")
    drafter.append(ANSWER[10:20])
    twin = drafter.fork()
    twin.append(ANSWER[20:30])
    twin.close()
    drafter.close()
    proposer.begin([], [], b"a").append([0] * 100)
    tree = proposer._store(b"a").tree
    assert len(tree) == 20
    assert all(
        place is not None and place.node.count == 1 for place in (tree.find(array("I", [n]), 0) for n in (110, 129))
    )
    assert tree.find(array("I", [105]), 0) is None


@given(
    outputs=st.lists(st.lists(st.integers(0, 1), max_size=15), max_size=12),
    capacity=st.integers(1, 20),
    paces=st.lists(st.integers(0, 12), max_size=12),
)
def test_a_store_holds_the_latest_outputs_whatever_its_pace(
    outputs: list[list[int]], capacity: int, paces: list[int]
) -> None:
    store = OutputStore(capacity)
    taken: list[int] = []
    for place, output in enumerate(outputs):
        waiting = store._num_waiting
        store.learn(array("I", output))
        if waiting + min(capacity, len(output)) <= capacity:
            taken += output[-capacity:]
        for pace in paces[place : place + 1]:
            before = store._num_waiting
            store.advance(pace)
            assert store._num_waiting == max(0, before - pace)
        assert len(store.tree) <= capacity
        assert store._num_waiting <= capacity
    store.advance(capacity)
    assert len(store.tree) == min(capacity, len(taken))
    for token in (0, 1):
        found = store.tree.find(array("I", [token]), 0)
        assert (found.node.count if found else 0) == taken[-capacity:].count(token)


@pytest.mark.parametrize("advanced", range(11))
def test_of_each_output_the_end_is_known(advanced: int) -> None:
    """So whatever is found, its tail is found, too, and matches may be searched by halves."""
    store, first, second = OutputStore(12), list(range(10)), list(range(10, 20))

    def known() -> list[int]:
        return [token for token in range(20) if store.tree.find(array("I", [token]), 0)]

    store.learn(array("I", first))
    store.advance(advanced)
    assert known() == first[10 - advanced :]
    store.advance(10)
    store.learn(array("I", second))
    store.advance(advanced)
    assert known() == first[max(0, advanced - 2) :] + second[10 - advanced :]


def test_long_drafts_and_matches_fit_the_tree() -> None:
    proposer = SuffixProposer()
    says(proposer, FILLER, b"a")
    assert asked(proposer, FILLER[:100], b"a", 1000) == FILLER[100 : 100 + min(MATCH, DRAFT)]
    with pytest.raises(ValueError, match="no tokens"):
        OutputStore(0)
