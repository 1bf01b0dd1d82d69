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
    longest = max(offered, default=0)
    room = costs.ragged.most_rows - decodes - others
    if not longest or room <= 0:
        return [0] * decodes
    numbers = np.arange(1, longest + 1)
    values = np.asarray(acceptances, np.float64)[:, None] ** numbers
    owners, places = np.nonzero(numbers <= np.asarray(offered)[:, None])
    values = values[owners, places]
    order = np.argsort(-values, kind="stable")[:room]
    tokens = decodes + np.cumsum(values[order])
    rates = tokens / costs.ragged.seconds(decodes + others + np.arange(1, len(order) + 1))
    best = int(np.argmax(rates))
    if rates[best] <= decodes / costs.without_drafts(decodes, others):
        return [0] * decodes
    chosen: list[int] = np.bincount(owners[order[: best + 1]], minlength=decodes).tolist()
    return chosen
