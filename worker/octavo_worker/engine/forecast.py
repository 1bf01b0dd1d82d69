"""How long sequences go on and how much memory they are going to take, as far as their limits tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from octavo_worker.engine.sequence import Sequence

HORIZON = 512
"""Tokens that are looked ahead. Outputs often end before their limits: looking as far as those would keep memory free
for what never comes."""

SHORT = 0.7
"""Who has at most this share of the longest's tokens left ends before it, even if it begins a while later."""


def tokens_left(sequence: Sequence) -> int:
    """What its limit leaves it to generate."""
    return sequence.request.final - sequence.length


def are_short(gang: Iterable[Sequence], others: Iterable[Sequence]) -> bool:
    """Whether the `gang` may begin later and does not run alone at the end: some of `others` have so much more left."""
    return max(map(tokens_left, gang)) <= SHORT * max(map(tokens_left, others))


def most_growth(width: int) -> int:
    """What `peak_growth` of sequences of so many members is at most."""
    return width * HORIZON


def peak_growth(sequences: Collection[Sequence]) -> int:
    """Tokens that `sequences` store beyond those that they have now, at the worst moment within the horizon.

    Every step adds a token to each, and whoever comes to its limit gives all of its own back. Admission by this peak is
    that of Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS 2025), whose history of
    lengths the limits stand in for. Samples and prefixes that share blocks are taken for ones that do not.
    """
    ends = sorted(((tokens_left(s), s.length, s.width) for s in sequences), reverse=True)
    now = sum(length for _, length, _ in ends)
    alive = width = peak = 0
    for left, length, members in ends:  # just before this one ends, it is there, and all that have more left
        alive, width = alive + length, width + members
        peak = max(peak, alive + width * min(left, HORIZON) - now)
    return peak
