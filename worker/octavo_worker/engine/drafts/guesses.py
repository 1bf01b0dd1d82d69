"""What one sequence has of speculation."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_worker.contract.step import UNKNOWN
from octavo_worker.engine.drafts.acceptance import Acceptance
from octavo_worker.engine.drafts.proposer import Drafter

CERTAIN = 0.98
"""How likely a token is that a grammar forces, until it was seen."""
SELDOM = 8
"""Of so many tokens, one is guessed that is not expected to be right: that may have changed."""


class Guesses:
    """Proposes the tokens of one sequence, and knows how often that was right, whether they were verified as drafts or
    left to plain decoding: so it is noticed when they begin to be right. Tokens that a grammar forces go before those
    of the drafter, and have an estimate of their own. A draft model has `seen` so many tokens of the sequence."""

    __slots__ = ("_acceptance", "_drafter", "_forced", "_latest", "_length", "_new", "_untried", "seen")

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._acceptance = self._latest = Acceptance()
        self._forced = Acceptance(CERTAIN)
        self._new: list[int] = []  # tokens that the drafter has not seen: it is told when it is asked
        self._length = 0  # tokens since it began
        self._untried: Sequence[int] = ()  # of the latest proposal, as far as the text agrees with it
        self.seen = 0

    def append(self, token: int) -> None:
        """The output has grown by a token."""
        if self._untried and self._untried[0] == UNKNOWN:  # the model was not asked
            self._latest.fade()
        elif self._untried:
            is_right = self._untried[0] == token
            self._latest.observe(1, int(is_right))
            self._untried = self._untried[1:] if is_right else ()
        self._length += 1
        self._new.append(token)

    def may_pay(self, least: float) -> bool:
        """Whether it is worth asking the drafter where drafts pay that are right with more than this probability."""
        return self._acceptance.estimate > least or self._length % SELDOM == 0

    def propose(self, most: int, forced: Sequence[int] = ()) -> Sequence[int]:
        """Up to `most` tokens that may follow. `estimate` and `observe` are about these from now on."""
        self._latest = self._forced if forced else self._acceptance
        self._untried = (forced or self._told().propose(most))[:most]
        return self._untried

    def _told(self) -> Drafter:
        """The drafter, which has seen all tokens."""
        if self._new:
            self._drafter.append(self._new)
            self._new = []
        return self._drafter

    @property
    def estimate(self) -> float:
        """The probability that the next token proposed is right."""
        return self._latest.estimate

    def observe(self, drafted: int, accepted: int) -> None:
        """What became of `drafted` tokens of the latest proposal. Called before they are appended."""
        self._untried = ()
        self._latest.observe(drafted, accepted)

    def fork(self) -> Guesses:
        """Those of a sequence that has said the same so far."""
        twin = Guesses(self._told().fork())
        twin._acceptance = twin._latest = self._acceptance.fork()
        twin._forced, twin._untried, twin._length = self._forced.fork(), self._untried, self._length
        twin.seen = self.seen
        return twin

    def close(self) -> None:
        """The sequence has ended."""
        self._told().close()
