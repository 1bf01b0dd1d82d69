"""How many tokens are worth guessing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from octavo_worker.engine.drafts.acceptance import expected_tokens
from octavo_worker.engine.drafts.costs import StepCosts


def choose_lengths(
    offered: Sequence[int],
    acceptances: Sequence[float],
    costs: StepCosts,
    *,
    others: int = 0,
    by_model: Sequence[bool] | None = None,
) -> list[int]:
    """How many drafts each decode of a step verifies, so that the step is expected to give most tokens per second.

    Decode i has a guess of `offered[i]` tokens (0: none), each right with probability `acceptances[i]` if those before
    are. `others` are rows of prompts in the same step; `by_model` says whose guesses a model is yet to make, which
    takes time. All zeros is a step without speculation, and what comes out where nothing is expected to be faster than
    that, or a step would have more rows than were measured.

    The j-th draft of a sequence is worth a^j tokens, whatever else is verified. So the best drafts of any number are
    the most valuable ones, and those of a sequence are in order: numbers from none to all are compared.
    """
    decodes, guessed = len(offered), by_model or [False] * len(offered)
    room = costs.ragged.most_rows - decodes - others
    chosen = [0] * decodes
    highest = decodes / costs.without_drafts(decodes, others) if any(offered) else 0.0
    known = [0 if is_guessed else count for count, is_guessed in zip(offered, guessed, strict=True)]
    for counts in (offered, known) if any(guessed) else (offered,):  # passes may be too dear where other drafts pay
        values = sorted(
            (-(acceptance**place), owner, place)
            for owner, (count, acceptance) in enumerate(zip(counts, acceptances, strict=True))
            for place in range(1, count + 1)
        )[: max(0, room)]
        seconds = costs.ragged.following(decodes + others, len(values))
        passes = costs.passes([place if guessed[owner] else 0 for _, owner, place in values])
        tokens, best = float(decodes), 0
        for number, ((value, *_), taken, guessing) in enumerate(zip(values, seconds, passes, strict=True), 1):
            tokens -= value
            if tokens / (taken + guessing) > highest:
                highest, best = tokens / (taken + guessing), number
        if best:
            counted = Counter(owner for _, owner, _ in values[:best])
            chosen = [counted[owner] for owner in range(decodes)]
    return chosen


def expected_gain(
    lengths: Sequence[int],
    acceptances: Sequence[float],
    costs: StepCosts,
    *,
    others: int = 0,
    by_model: Sequence[bool] | None = None,
) -> float:
    """How many times as many tokens a second a step with these drafts is expected to give as one without."""
    decodes, drafts = len(lengths), sum(lengths)
    if not drafts:
        return 1.0
    tokens = sum(expected_tokens(a, k) for a, k in zip(acceptances, lengths, strict=True))
    seconds = float(costs.ragged.seconds(decodes + drafts + others))
    if by_model is not None:
        guessed = [
            place for k, is_guessed in zip(lengths, by_model, strict=True) if is_guessed for place in range(1, k + 1)
        ]
        seconds += costs.passes(guessed)[-1] if guessed else 0.0
    return tokens / decodes * costs.without_drafts(decodes, others) / seconds
