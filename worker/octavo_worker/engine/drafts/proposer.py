"""Drafters: proposers of the next tokens of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Guesses what one sequence says next.

    It knows the tokens of prompt and output that are final, nothing else. Drafts leave no trace in it: one that is
    rejected was never taken, so there is nothing to take back.
    """

    def append(self, tokens: Sequence[int]) -> None:
        """Take tokens that the output has grown by."""
        ...

    def propose(self, most: int) -> Sequence[int]:
        """Up to `most` ids of the vocabulary that may follow; none where it has no guess."""
        ...

    def fork(self) -> Drafter:
        """The drafter of a sequence that has said the same so far. Neither sees what is appended to the other."""
        ...

    def close(self) -> None:
        """The sequence has ended. Nothing else is called after this."""
        ...


class Proposer(Protocol):
    """A way to guess tokens: makes a drafter for each sequence."""

    def begin(self, prompt: Sequence[int], output: Sequence[int], salt: bytes) -> Drafter:
        """The drafter of a sequence with this `prompt` and, after a takeover, this `output`. What one `salt` says must
        not show in the drafts of another: that others are fast would tell what they got."""
        ...
