"""Shares of a step's budget of prompts that are computed side by side."""

from __future__ import annotations


def share(left: int, budget: int, others: int, abreast: int) -> int:
    """Tokens of the `budget` for a prompt that has `left` to compute, if `others` behind it want some, too, and no more
    than `abreast` are to share: an even part, or all that it has left where that is not much more."""
    part = -(-budget // max(1, min(abreast, 1 + others)))
    return min(budget, left if 2 * left <= 3 * part else part)
