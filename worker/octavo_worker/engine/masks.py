"""What the samples of a step may be, by the grammars of their sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from octavo_worker.contract.step import Masks, SequenceStep
from octavo_worker.engine.grammar import GrammarError, Matcher
from octavo_worker.engine.requests import Requests
from octavo_worker.engine.sequence import Sequence, State
from octavo_worker.engine.step_in_flight import StepInFlight

SLOW_S = 0.25
"""A request with two masks that took longer is given up: all others wait for each."""
_TOO_SLOW = "the grammar takes too long to follow: make it simpler"


class MaskFiller:
    """Fills the masks of steps, and gives up requests whose grammar cannot be followed. `clock` tells the seconds that
    this thread has computed: a busy machine is no fault of a grammar. Those of each mask are kept in `log` while there
    is one."""

    def __init__(self, requests: Requests, clock: Callable[[], float] = time.thread_time) -> None:
        self.log: list[float] | None = None
        self._requests = requests
        self._clock = clock

    def fill(self, step: StepInFlight) -> Masks:
        """The masks of a step whose predecessors have been committed; none for sequences that have ended. Of decodes
        with drafts, the step learns how many rows have a mask."""
        wanted = list(_masked(step))
        if not wanted:
            return Masks.none()
        words = max(matcher.words for *_, matcher in wanted)
        rows = np.zeros((sum(len(planned.samples) for _, _, planned, _ in wanted), words), np.int32)
        places: list[int] = []
        for place, sequence, planned, matcher in wanted:
            filled = self._fill_all(rows[len(places) :], sequence, planned, matcher)
            places += range(place, place + filled)
            if planned.drafts:
                step.masked_rows[sequence] = filled
        return Masks(places, rows[: len(places)])

    def _fill_all(self, rows: NDArray[np.int32], sequence: Sequence, planned: SequenceStep, matcher: Matcher) -> int:
        """Fill the masks of a sequence's samples, and say how many: none after one that fails its request."""
        if planned.drafts:
            if sequence.state is State.FINISHED or not self._fill(rows[0], sequence, matcher):
                return 0
            return 1 + self._look_ahead(rows[1:], sequence, planned, matcher.copy())
        filled = 0
        while filled < len(planned.samples) and sequence.state is not State.FINISHED:
            filled += self._fill(rows[filled], sequence, matcher)
        return filled

    def _fill(self, row: NDArray[np.int32], sequence: Sequence, matcher: Matcher) -> bool:
        request = sequence.request
        try:
            seconds = self._compute(row, sequence, matcher)
        except GrammarError as error:
            self._requests.fail(request, "invalid_grammar", error.message, "grammar")
            return False
        if seconds > SLOW_S:
            request.slow_masks += 1
            if request.slow_masks > 1:
                self._requests.fail(request, "grammar_too_slow", _TOO_SLOW, "grammar")
                return False
        return True

    def _look_ahead(self, rows: NDArray[np.int32], sequence: Sequence, planned: SequenceStep, matcher: Matcher) -> int:
        """Fill the masks behind drafts, with a matcher for this alone. What may never be said is no fault of a grammar:
        behind a draft that it does not allow, a mask that it does not give, or a slow one, there are no more."""
        for number, draft in enumerate(planned.drafts):
            try:
                if not matcher.accept((draft,)):
                    return number
                seconds = self._compute(rows[number], sequence, matcher, number + 1)
            except GrammarError:
                return number
            if seconds > SLOW_S:
                return number + 1
        return len(planned.drafts)

    def _compute(self, row: NDArray[np.int32], sequence: Sequence, matcher: Matcher, drafts: int = 0) -> float:
        """Fill a mask behind so many drafts. Returns the seconds that it took."""
        request, began = sequence.request, self._clock()
        matcher.fill(row)
        seconds = self._clock() - began
        if self.log is not None:
            self.log.append(seconds)
        is_early = len(sequence.output) + drafts < request.rules.min_tokens
        _bar(row, request.barred_early if is_early else request.barred)
        return seconds


def _masked(step: StepInFlight) -> Iterable[tuple[int, Sequence, SequenceStep, Matcher]]:
    """(place of its first sample among all, sequence, its part of the step, matcher) of each sequence with masked
    samples that has not ended. Samples that leave a prompt together belong to forks by now, whose matchers have taken
    as little as that of the first."""
    place = 0
    for sequence, planned in zip(step.sequences, step.steps, strict=True):
        is_masked = bool(planned.samples) and planned.samples[0].masked
        if is_masked and sequence.matcher is not None and sequence.state is not State.FINISHED:
            yield place, sequence, planned, sequence.matcher
        place += len(planned.samples)


def _bar(row: NDArray[np.int32], barred: NDArray[np.int32] | None) -> None:
    """Take stop tokens out that may not come yet. Where nothing else is left, the grammar wins: what is complete cannot
    be continued."""
    if barred is not None:
        rest = row & ~barred
        if rest.any():
            row[:] = rest
