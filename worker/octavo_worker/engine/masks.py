"""What the samples of a step may be, by the grammars of their sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from octavo_worker.contract.step import Masks
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
        """The masks of a step whose predecessors have been committed; none for sequences that have ended."""
        wanted = list(_masked(step))
        if not wanted:
            return Masks.none()
        rows = np.zeros((len(wanted), wanted[0][2].words), np.int32)
        places: list[int] = []
        for place, sequence, matcher in wanted:
            if sequence.state is State.FINISHED:  # its request was given up for another sequence's mask
                continue
            if self._fill(rows[len(places)], sequence, matcher):
                places.append(place)
        return Masks(places, rows[: len(places)])

    def _fill(self, row: NDArray[np.int32], sequence: Sequence, matcher: Matcher) -> bool:
        request, began = sequence.request, self._clock()
        try:
            matcher.fill(row)
        except GrammarError as error:
            self._requests.fail(request, "invalid_grammar", error.message, "grammar")
            return False
        seconds = self._clock() - began
        if self.log is not None:
            self.log.append(seconds)
        if seconds > SLOW_S:
            request.slow_masks += 1
            if request.slow_masks > 1:
                self._requests.fail(request, "grammar_too_slow", _TOO_SLOW, "grammar")
                return False
        is_early = len(sequence.output) < request.rules.min_tokens
        _bar(row, request.barred_early if is_early else request.barred)
        return True


def _masked(step: StepInFlight) -> Iterable[tuple[int, Sequence, Matcher]]:
    """(place among all samples, sequence, matcher) of each masked sample whose sequence has not ended. Samples that
    leave a prompt together belong to forks by now, whose matchers have taken as little as that of the first."""
    place = 0
    for sequence, planned in zip(step.sequences, step.steps, strict=True):
        for spec in planned.samples:
            if spec.masked and sequence.matcher is not None and sequence.state is not State.FINISHED:
                yield place, sequence, sequence.matcher
            place += 1


def _bar(row: NDArray[np.int32], barred: NDArray[np.int32] | None) -> None:
    """Take stop tokens out that may not come yet. Where nothing else is left, the grammar wins: what is complete cannot
    be continued."""
    if barred is not None:
        rest = row & ~barred
        if rest.any():
            row[:] = rest
