"""How likely a draft is right."""

from __future__ import annotations

PRIOR = 0.6
PRIOR_TRIALS = 2.0
"""As many trials as the prior is worth."""
KEPT = 0.95
"""Part of the evidence, prior included, that outlasts a step with drafts: about the last twenty count."""

FADED = 0.005
"""Part of the evidence that gives way to the prior with each token that was not guessed: a model that was wrong is
asked again some day. Tries in vain cost less than a hundredth of the time."""


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Tokens that a step gives whose drafts are each right with probability `acceptance` if those before are:
    1 + a + a² + ... up to the power of `drafts`."""
    if acceptance == 1.0:
        return drafts + 1.0
    return (1.0 - acceptance ** (drafts + 1)) / (1.0 - acceptance)


class Acceptance:
    """The estimate for one sequence: a mean of what was seen, the latest most of all, which begins with a prior."""

    __slots__ = ("_hits", "_trials")

    def __init__(self, prior: float = PRIOR) -> None:
        self._hits = prior * PRIOR_TRIALS
        self._trials = PRIOR_TRIALS

    @property
    def estimate(self) -> float:
        """The probability that the next draft is right."""
        return self._hits / self._trials

    def observe(self, drafted: int, accepted: int) -> None:
        """A step verified `drafted` tokens and accepted so many. Those behind a wrong one were not tried. Raises
        ValueError for more accepted than drafted."""
        if not 0 <= accepted <= drafted:
            raise ValueError(f"{accepted} of {drafted} drafts cannot be accepted")
        if drafted:
            self._hits = KEPT * self._hits + accepted
            self._trials = KEPT * self._trials + min(accepted + 1, drafted)

    def fade(self, tokens: int) -> None:
        """So many tokens were said that might have been guessed."""
        faded = 1.0 - (1.0 - FADED) ** tokens
        self._hits += faded * (PRIOR * PRIOR_TRIALS - self._hits)
        self._trials += faded * (PRIOR_TRIALS - self._trials)

    def fork(self) -> Acceptance:
        twin = Acceptance()
        twin._hits, twin._trials = self._hits, self._trials
        return twin
