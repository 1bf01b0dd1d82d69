"""How an oversized sequence shares the device's time with the sequences that decode beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from octavo_worker.contract.step import StepPlan
from octavo_worker.engine.sequence import Sequence

DECAY = 0.002
"""Part of an ordinary step's duration that each shared step forgets: an estimate spoiled by a hiccup must fade."""


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """A step: when it began, whether an oversized sequence decodes in it, whether others decode, whether it computes
    no prompt, and by how many seconds the oversized sequence was expected to lengthen it."""

    began: float
    oversized: bool
    others: bool
    decodes_only: bool
    charge: float


class TimeShare:
    """Each oversized step is followed by ordinary steps of the same extra duration.

    A step in which an oversized sequence decodes reads host memory, and may take many times as long as a step of the
    others. They are owed the difference: the oversized sequence rests until it is paid, so it gets at most half of the
    device. Where reading host memory costs nothing, as on a CPU, it never rests.

    A step may be planned before the one in flight has ended. It is then charged what the last oversized step cost.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._owed = 0.0  # seconds, to the others
        self._usual = 0.0  # seconds of the latest ordinary step
        self._extra = 0.0  # seconds by which the latest oversized step was longer
        self._ended = 0.0

    @property
    def resting(self) -> bool:
        """True if at least one whole step is owed."""
        return self._owed > 0.0 and self._owed >= self._usual

    def begin(self, plan: StepPlan, planned: list[Sequence], decoding: Iterable[Sequence]) -> TimeSlice:
        """`planned` are the sequences of the plan. Of all that are `decoding`, some may sit it out."""
        decodes = planned[: plan.num_decodes]
        oversized = any(sequence.request.oversized for sequence in decodes)
        others = any(not sequence.request.oversized for sequence in decoding)
        charge = self._extra if oversized and others else 0.0
        self._owed = self._owed + charge if others or not oversized else 0.0
        return TimeSlice(self._clock(), oversized, others, len(decodes) == len(planned) > 0, charge)

    def end(self, step: TimeSlice) -> None:
        """Steps end in the order in which they began."""
        now = self._clock()
        took = now - max(step.began, self._ended)
        self._ended = now
        if step.oversized:
            if step.others and step.decodes_only:
                self._usual = min(took, self._usual * (1.0 - DECAY))
                self._extra = took - self._usual
                self._owed = max(0.0, self._owed + self._extra - step.charge)
            return
        self._owed = max(0.0, self._owed - took)
        if step.decodes_only:
            self._usual = min(took, 2.0 * self._usual or took)
