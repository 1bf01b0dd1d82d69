"""Forecast of lengths and memory, from the limits of sequences."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from octavo_worker.engine.sequence import Sequence

HORIZON = 512
"""Tokens of the forecast. Outputs often end before their limits: a forecast up to those would reserve memory that is
never used."""

SHORT = 0.7
"""A sequence with at most this share of the longest one's tokens left ends before it, even if it begins later."""


def tokens_left(sequence: Sequence) -> int:
    """Tokens that its limit leaves it to generate."""
    return sequence.request.final - sequence.length


def are_short(gang: Iterable[Sequence], others: Iterable[Sequence]) -> bool:
    """True if the `gang` may begin later and still not run alone at the end, because some of `others` are longer."""
    return max(map(tokens_left, gang)) <= SHORT * max(map(tokens_left, others))


def most_growth(width: int) -> int:
    """An upper bound of `peak_growth` for `width` sequences."""
    return width * HORIZON


def peak_growth(sequences: Collection[Sequence]) -> int:
    """Tokens that `sequences` store beyond those that they have now, at the peak within the horizon.

    Every step adds a token to each sequence; one that reaches its limit frees all of its tokens. Admission by this peak
    is that of Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS 2025), with limits in
    place of their history of lengths. Shared blocks are counted as if they were not shared.
    """
    ends = sorted(((tokens_left(s), s.length, s.width) for s in sequences), reverse=True)
    now = sum(length for _, length, _ in ends)
    alive = width = peak = 0
    for left, length, members in ends:  # just before this one ends, it is there, and all that have more left
        alive, width = alive + length, width + members
        peak = max(peak, alive + width * min(left, HORIZON) - now)
    return peak
