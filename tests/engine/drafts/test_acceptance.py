"""Accepted drafts, their expected number, and the estimate that is learned from them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.engine.drafts import Acceptance, Guesses, count_accepted, expected_tokens
from octavo_worker.engine.drafts.acceptance import PRIOR
from octavo_worker.engine.drafts.guesses import LONGEST_REST

tokens = st.lists(st.integers(0, 3), max_size=8)


@given(drafts=tokens, more=st.data())
def test_drafts_are_accepted_up_to_the_first_that_was_not_drawn(drafts: list[int], more: st.DataObject) -> None:
    drawn = more.draw(st.lists(st.integers(0, 3), min_size=len(drafts) + 1, max_size=len(drafts) + 1))
    accepted = count_accepted(drafts, drawn)
    assert drafts[:accepted] == drawn[:accepted]
    assert accepted == len(drafts) or drafts[accepted] != drawn[accepted]


@pytest.mark.parametrize(("drafts", "drawn"), [([1], [1]), ([], []), ([1, 2], [1, 2, 3, 4])])
def test_each_draft_needs_a_row_and_one_more(drafts: list[int], drawn: list[int]) -> None:
    with pytest.raises(ValueError, match="verified by"):
        count_accepted(drafts, drawn)


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("acceptance", [Fraction(0), Fraction(1, 3), Fraction(7, 10), Fraction(1)])
def test_the_closed_form_is_the_mean_over_all_that_can_happen(acceptance: Fraction, number: int) -> None:
    mean = Fraction(0)
    for rights in product([True, False], repeat=number):
        drafts = [0 if right else 1 for right in rights]
        probability = prod(acceptance if right else 1 - acceptance for right in rights)
        mean += probability * (count_accepted(drafts, [0] * (number + 1)) + 1)
    assert expected_tokens(float(acceptance), number) == pytest.approx(float(mean), rel=1e-12)


steps = st.lists(st.integers(1, 8).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), max_size=60)


@given(steps)
def test_an_estimate_is_a_probability_that_grows_with_what_is_accepted(steps: list[tuple[int, int]]) -> None:
    estimate, better = Acceptance(), Acceptance()
    for drafted, accepted in steps:
        estimate.observe(drafted, accepted)
        better.observe(drafted, min(drafted, accepted + 1))
        assert 0.0 < estimate.estimate < 1.0
        assert better.estimate >= estimate.estimate
    assert estimate.fork().estimate == estimate.estimate


@pytest.mark.parametrize(("accepted", "least", "most"), [(4, 0.95, 1.0), (0, 0.0, 0.05), (1, 0.49, 0.51)])
def test_what_is_seen_for_long_replaces_the_prior(accepted: int, least: float, most: float) -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.observe(4, accepted)
    assert least <= acceptance.estimate <= most


class Script:
    """A drafter that says what it is told to, and more than it is asked for."""

    def __init__(self) -> None:
        self.says: list[int] = []
        self.told: list[int] = []

    def append(self, tokens: Sequence[int]) -> None:
        self.told += tokens

    def propose(self, most: int) -> Sequence[int]:
        return [*self.says, *[99] * most]

    def fork(self) -> Script:
        return self

    def close(self) -> None:
        """Nothing to do."""


def test_guesses_that_are_not_tried_show_how_good_they_are() -> None:
    script, output = Script(), list[int]()
    guesses = Guesses(script, output)
    script.says = [5]
    for estimate, token in ((1.0, 5), (0.0, 6)):
        for _ in range(90):
            assert guesses.propose(1) == [5]
            output.append(token)
        assert guesses.estimate == pytest.approx(estimate, abs=0.02)


def test_a_drafter_asked_in_vain_backs_off_longer_and_longer() -> None:
    output, asked = list[int](), list[int]()
    guesses = Guesses(Script(), output)
    for length in range(99):
        if guesses.wakes <= length:
            asked.append(length)
            guesses.propose(1)
            guesses.rest()
        output.append(6)
    rests = [after - before for before, after in itertools.pairwise(asked)]
    assert rests[:5] == [1, 2, 4, 8, LONGEST_REST]
    assert set(rests[5:]) == {LONGEST_REST}
    guesses.rest(longest=3)
    assert guesses.wakes == len(output) + 3
    guesses.observe(1, 1)
    assert guesses.wakes <= len(output), "who was right is asked at once"
    guesses.rest()
    assert guesses.wakes == len(output) + 1


def test_what_was_said_meanwhile_is_learned_at_once() -> None:
    """The drafter is told of all tokens, and the guess is compared with all that were said."""
    script, output = Script(), [4]
    script.says = [1, 2, 3, 4]
    guesses = Guesses(script, output)
    guesses.propose(4)
    output += [1, 2, 3, 9, 9]
    guesses.propose(4)
    assert script.told == [1, 2, 3, 9, 9]
    same = Acceptance()
    same.observe(4, 3)
    assert guesses.estimate == same.estimate


def test_a_guess_counts_as_far_as_the_text_agrees_and_once() -> None:
    script, output = Script(), list[int]()
    script.says = [1, 2, 3, 4]
    guesses, same = Guesses(script, output), Acceptance()
    assert guesses.propose(4) == [1, 2, 3, 4]
    other = list(output)
    twin = guesses.fork(other)
    output += [1, 2, 9, 4]
    guesses.propose(4)
    output += [7]
    guesses.propose(0)
    same.observe(3, 2)
    same.observe(1, 0)
    assert guesses.estimate == same.estimate
    twin.observe(4, 2)
    other += [1, 2, 9]
    twin.propose(4)
    verified = Acceptance()
    verified.observe(4, 2)
    assert twin.estimate == verified.estimate


def test_what_is_forced_goes_first_and_has_an_estimate_of_its_own() -> None:
    script, output = Script(), list[int]()
    script.says = [1]
    guesses = Guesses(script, output)
    for _ in range(50):
        guesses.propose(1)
        output.append(7)
    assert guesses.estimate < 0.1
    assert guesses.propose(2, (7, 8, 9)) == (7, 8)
    assert guesses.estimate > 0.9
    guesses.propose(1)
    assert guesses.estimate < 0.1


def test_a_step_without_drafts_says_nothing() -> None:
    acceptance = Acceptance()
    acceptance.observe(0, 0)
    assert acceptance.estimate == PRIOR
    with pytest.raises(ValueError, match="cannot be accepted"):
        acceptance.observe(2, 3)
