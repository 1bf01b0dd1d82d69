"""Masks of a step's samples, by the grammars of their sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_worker.contract.step import Masks, SequenceStep
from octavo_worker.engine.grammar import Barred, GrammarError, Matcher, Together, bar_all
from octavo_worker.engine.requests import Requests
from octavo_worker.engine.sequence import Sequence, State
from octavo_worker.engine.step_in_flight import StepInFlight

SLOW_S = 0.25
"""A request with two masks that took longer is given up: all others wait for each."""
_TOO_SLOW = "the grammar takes too long to follow: make it simpler"
WORTH_IT = 4  # masks that other threads are woken for


@dataclass(slots=True, eq=False)
class _Masked:
    """A sequence with masked samples: the place of the first one among all, and the row of its mask. `filled` counts
    those that have one, from the first on."""

    place: int
    row: int
    sequence: Sequence
    planned: SequenceStep
    matcher: Matcher
    filled: int = 0


class MaskFiller:
    """Fills the masks of steps, and gives up requests whose grammar cannot be followed.

    With several `threads`, masks are computed together. `clock` tells the seconds that this thread has computed: a busy
    machine is no fault of a grammar. If masks that were computed together took too long, those of their requests are
    computed one by one from then on, by that clock. `timer` tells seconds. Those of each step are kept in `log` while
    there is one.
    """

    def __init__(
        self,
        requests: Requests,
        threads: int = 1,
        clock: Callable[[], float] = time.thread_time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.log: list[float] | None = None
        self._requests = requests
        self._together = Together(threads) if threads > 1 else None
        self._clock, self._timer = clock, timer

    def fill(self, step: StepInFlight) -> Masks:
        """The masks of a step whose predecessors have been committed; none for sequences that have ended. Of decodes
        with drafts, the step learns how many rows have a mask."""
        wanted = list(_masked(step))
        if not wanted:
            return Masks.none()
        began = self._timer()
        last = wanted[-1]
        rows = np.empty((last.row + len(last.planned.samples), last.matcher.words), np.int32)
        known = self._fill_together(wanted, rows)
        for masked in wanted:
            masked.filled = self._fill_all(rows, masked, known)
            if masked.planned.drafts:
                step.masked_rows[masked.sequence] = masked.filled
        if self.log is not None:
            self.log.append(self._timer() - began)
        places = [masked.place + i for masked in wanted for i in range(masked.filled)]
        if len(places) < len(rows):
            rows = rows[[masked.row + i for masked in wanted for i in range(masked.filled)]]
        return Masks(places, rows)

    def _fill_together(self, wanted: list[_Masked], rows: NDArray[np.int32]) -> dict[Sequence, GrammarError | None]:
        """Fill the first mask of each sequence, where that is worth it, and say whose and with which errors."""
        group = [masked for masked in wanted if not masked.sequence.request.suspected]
        if self._together is None or len(group) < WORTH_IT:
            return {}
        began = self._timer()
        places = [masked.row for masked in group]
        errors = self._together.fill([masked.matcher for masked in group], places, rows)
        if self._timer() - began > SLOW_S:
            for masked in group:
                masked.sequence.request.suspected = True
        bar_all([_barred(masked.sequence) for masked in group], places, rows)
        return {masked.sequence: error for masked, error in zip(group, errors, strict=True)}

    def _fill_all(self, rows: NDArray[np.int32], masked: _Masked, known: dict[Sequence, GrammarError | None]) -> int:
        """Fill the masks of a sequence's samples but for one that is `known`, and say how many there are: none after
        one that fails its request."""
        sequence, planned, first = masked.sequence, masked.planned, rows[masked.row]
        if sequence.state is State.FINISHED:
            return 0
        if sequence not in known:
            if not self._fill(first, sequence, masked.matcher):
                return 0
        elif (error := known[sequence]) is not None:
            self._requests.fail_grammar(sequence.request, error)
            return 0
        if len(planned.samples) == 1:
            return 1
        behind = rows[masked.row + 1 : masked.row + len(planned.samples)]
        if planned.drafts:
            return 1 + self._look_ahead(behind, sequence, planned, masked.matcher.copy())
        behind[:] = first  # samples that leave a prompt together
        return len(planned.samples)

    def _fill(self, row: NDArray[np.int32], sequence: Sequence, matcher: Matcher) -> bool:
        request = sequence.request
        try:
            seconds = self._compute(row, sequence, matcher)
        except GrammarError as error:
            self._requests.fail_grammar(request, error)
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
        began = self._clock()
        matcher.fill(row)
        seconds = self._clock() - began
        _barred(sequence, drafts).bar(row)
        return seconds


def _masked(step: StepInFlight) -> Iterable[_Masked]:
    """Sequences that have not ended. Samples that leave a prompt together belong to forks by now, whose matchers have
    taken as little as that of the first."""
    place = row = 0
    for sequence, planned in zip(step.sequences, step.steps, strict=True):
        is_masked = bool(planned.samples) and planned.samples[0].masked
        if is_masked and sequence.matcher is not None and sequence.state is not State.FINISHED:
            yield _Masked(place, row, sequence, planned, sequence.matcher)
            row += len(planned.samples)
        place += len(planned.samples)


def _barred(sequence: Sequence, drafts: int = 0) -> Barred:
    """The stop tokens that may not come behind so many drafts."""
    request = sequence.request
    is_early = len(sequence.output) + drafts < request.rules.min_tokens
    return request.barred_early if is_early else request.barred
