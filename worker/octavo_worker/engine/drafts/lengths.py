"""How many tokens are worth guessing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo_worker.engine.drafts.costs import StepCosts


def choose_lengths(
    offered: Sequence[int], acceptances: Sequence[float], costs: StepCosts, *, others: int = 0
) -> list[int]:
    """How many drafts each decode of a step verifies, so that the step is expected to give most tokens per second.

    Decode i has a guess of `offered[i]` tokens (0: none), each right with probability `acceptances[i]` if those before
    are. `others` are rows of prompts in the same step. All zeros is a step without speculation, and what comes out
    where nothing is expected to be faster than that, or a step would have more rows than were measured.

    The j-th draft of a sequence is worth a^j tokens, whatever else is verified. So the best drafts of any number are
    the most valuable ones, and those of a sequence are in order: numbers from none to all are compared.
    """
    decodes = len(offered)
    room = costs.ragged.most_rows - decodes - others
    values = sorted(
        (-(acceptance**place), owner)
        for owner, (count, acceptance) in enumerate(zip(offered, acceptances, strict=True))
        for place in range(1, count + 1)
    )[: max(0, room)]
    seconds = costs.ragged.seconds(decodes + others + np.arange(1, len(values) + 1)).tolist()
    tokens, best, chosen = float(decodes), 0, [0] * decodes
    highest = decodes / costs.without_drafts(decodes, others) if values else 0.0
    for number, ((value, _), taken) in enumerate(zip(values, seconds, strict=True), 1):
        tokens -= value
        if tokens / taken > highest:
            highest, best = tokens / taken, number
    for _, owner in values[:best]:
        chosen[owner] += 1
    return chosen
