"""What one sequence has of speculation."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_worker.engine.drafts.acceptance import Acceptance
from octavo_worker.engine.drafts.proposer import Drafter

CERTAIN = 0.98
"""How likely a token is that a grammar forces, until it was seen."""


class Guesses:
    """Proposes the tokens of one sequence, and knows how often that was right. Tokens that a grammar forces go before
    those of the drafter, and have an estimate of their own."""

    __slots__ = ("_acceptance", "_drafter", "_forced", "_latest")

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._acceptance = self._latest = Acceptance()
        self._forced = Acceptance(CERTAIN)

    def append(self, token: int) -> None:
        """The output has grown by a token."""
        self._drafter.append((token,))

    def propose(self, most: int, forced: Sequence[int] = ()) -> Sequence[int]:
        """Up to `most` tokens that may follow. `estimate`, `observe` and `rest` are about these from now on."""
        if forced:
            self._latest = self._forced
            return forced[:most]
        self._latest = self._acceptance
        return self._drafter.propose(most)

    @property
    def estimate(self) -> float:
        """The probability that the next token proposed is right."""
        return self._latest.estimate

    def observe(self, drafted: int, accepted: int) -> None:
        """What became of `drafted` tokens of the latest proposal."""
        self._latest.observe(drafted, accepted)

    def rest(self) -> None:
        """Nothing of the latest proposal was tried."""
        self._latest.rest()

    def fork(self) -> Guesses:
        """Those of a sequence that has said the same so far."""
        twin = Guesses(self._drafter.fork())
        twin._acceptance = twin._latest = self._acceptance.fork()
        twin._forced = self._forced.fork()
        return twin

    def close(self) -> None:
        """The sequence has ended."""
        self._drafter.close()
