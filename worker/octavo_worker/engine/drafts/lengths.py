"""How many tokens are worth guessing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
    decodes = len(offered)
    chosen = np.zeros(decodes, np.int64)
    highest = decodes / costs.without_drafts(decodes, others) if any(offered) else 0.0
    counts = np.array(offered, np.int64)
    is_guessed = None if by_model is None or not any(by_model) else np.array(by_model)
    kinds = (counts,) if is_guessed is None else (counts, np.where(is_guessed, 0, counts))
    for kind in kinds:  # passes may be too dear where other drafts pay
        values, owners, places = _by_value(kind, np.array(acceptances))
        seconds = costs.ragged.following(decodes + others, len(values))
        if is_guessed is not None:
            seconds = seconds + costs.passes(np.where(is_guessed[owners], places, 0)[: len(seconds)].tolist())
        speeds = (decodes + np.cumsum(values[: len(seconds)])) / seconds
        if len(speeds) and speeds.max() > highest:
            best = int(speeds.argmax())
            highest, chosen = speeds[best], np.bincount(owners[: best + 1], minlength=decodes)
    return chosen.tolist()


def _by_value(
    counts: NDArray[np.int64], acceptances: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """The value of each draft, whose it is, and its place there from 1: the most valuable first."""
    owners = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(1, len(owners) + 1) - (np.cumsum(counts) - counts)[owners]
    values = acceptances[owners] ** places
    order = np.argsort(-values, kind="stable")
    return values[order], owners[order], places[order]


def expected_speedup(
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
