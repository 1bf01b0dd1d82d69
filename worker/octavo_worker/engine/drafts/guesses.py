"""Speculation of one sequence: its drafter, and how often that was right."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_worker.contract.step import UNKNOWN
from octavo_worker.engine.drafts.acceptance import Acceptance
from octavo_worker.engine.drafts.proposer import Drafter

CERTAIN = 0.98
"""How likely a token is that a grammar forces, until it was seen."""
LONGEST_REST = 16
"""Tokens that are said at most before a drafter that was asked in vain is asked again: that may have changed."""


class Guesses:
    """Proposes the tokens of one sequence, and knows how often that was right, whether they were verified as drafts or
    left to plain decoding: so it is noticed when they begin to be right. Tokens that a grammar forces go before those
    of the drafter, and have an estimate of their own. A draft model has `seen` so many tokens of the sequence.

    A token that is said costs nothing: what the sequence's `output` has grown by is looked at when the drafter is asked
    again. That is at once while it helps, and after twice as many tokens as before where it was in vain.
    """

    __slots__ = (
        "_acceptance",
        "_drafter",
        "_forced",
        "_latest",
        "_output",
        "_proposed_at",
        "_rest",
        "_told",
        "_untried",
        "seen",
        "wakes",
    )

    def __init__(self, drafter: Drafter, output: Sequence[int]) -> None:
        """The drafter knows the `output` as it is."""
        self._drafter = drafter
        self._output = output
        self._told = self._proposed_at = len(output)
        self._acceptance = self._latest = Acceptance()
        self._forced = Acceptance(CERTAIN)
        self._untried: Sequence[int] = ()  # of the latest proposal, which began at `_proposed_at`
        self._rest = 0
        self.wakes = 0
        """The length of the output from which on the drafter is worth asking."""
        self.seen = 0

    def rest(self, longest: int = LONGEST_REST) -> None:
        """The drafter was asked in vain: it is left alone for `longest` tokens at most."""
        self._rest = min(longest, 2 * self._rest or 1)
        self.wakes = len(self._output) + self._rest

    def propose(self, most: int, forced: Sequence[int] = ()) -> Sequence[int]:
        """Up to `most` tokens that may follow. `estimate` and `observe` are about these from now on."""
        self._look_back()
        self._latest = self._forced if forced else self._acceptance
        self._untried = (forced or self._informed().propose(most))[:most]
        self._proposed_at = len(self._output)
        return self._untried

    def _look_back(self) -> None:
        """How good the latest proposal was, as far as the text has come and agrees with it."""
        untried, said = self._untried, self._output[self._proposed_at :]
        if not untried or not said:
            return
        if untried[0] == UNKNOWN:  # the model was not asked
            self._latest.fade(len(said))
            return
        tried = min(len(untried), len(said))
        right = next((at for at in range(tried) if untried[at] != said[at]), tried)
        self._latest.observe(min(right + 1, tried), right)
        if right:  # it begins to help: soon it is asked in every step
            self._rest = 0

    def _informed(self) -> Drafter:
        """The drafter, which knows all tokens."""
        if self._told < len(self._output):
            self._drafter.append(self._output[self._told :])
            self._told = len(self._output)
        return self._drafter

    @property
    def estimate(self) -> float:
        """The probability that the next token proposed is right."""
        return self._latest.estimate

    def observe(self, drafted: int, accepted: int) -> None:
        """Counts `accepted` of the `drafted` tokens of the latest proposal. Called before they are appended."""
        self._untried = ()
        self._latest.observe(drafted, accepted)
        if accepted and self._latest is self._acceptance:
            self._rest = self.wakes = 0

    def fork(self, output: Sequence[int]) -> Guesses:
        """Guesses of a sequence with the same output so far, its `output`."""
        twin = Guesses(self._informed().fork(), output)
        twin._acceptance = self._acceptance.fork()
        twin._forced = self._forced.fork()
        twin._latest = twin._forced if self._latest is self._forced else twin._acceptance
        twin._untried, twin._proposed_at = self._untried, self._proposed_at
        twin._rest, twin.wakes, twin.seen = self._rest, self.wakes, self.seen
        return twin

    def close(self) -> None:
        """The sequence has ended."""
        self._informed().close()
