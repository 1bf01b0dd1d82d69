"""Which drafts are right."""

from __future__ import annotations

from collections.abc import Sequence


def count_accepted(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """How many `drafts` plain decoding would have said. `drawn` are the tokens drawn from the rows of the token before
    the drafts and of each of them, so there is one more: `drawn[: accepted + 1]` is what the sequence says.

    A row's noise depends on seed, sequence, position and token id, not on what was guessed: up to the first wrong draft
    each row is that of plain decoding, and so is the token drawn from it. Equality is all there is to test. Whatever is
    drawn after the first wrong draft follows a text that was never said. Raises ValueError for another number of
    tokens.
    """
    if len(drawn) != len(drafts) + 1:
        raise ValueError(f"{len(drafts)} drafts are verified by {len(drafts) + 1} drawn tokens, not by {len(drawn)}")
    return next((place for place, draft in enumerate(drafts) if draft != drawn[place]), len(drafts))
