"""How a long sequence and those that run beside it share the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo_worker.contract.step import StepPlan
from octavo_worker.engine.sequence import Sequence

FORGOTTEN = 0.002
"""Of what the others take alone, with every step that they share: an estimate that a hiccup spoiled must not last."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A step: when it began, whether a long sequence and others decode in it, whether nobody computes a prompt, and
    the seconds that it was expected to take longer for the long one's sake."""

    began: float
    oversized: bool
    others: bool
    decodes_only: bool
    charge: float


class TimeShare:
    """A step in which a long sequence decodes reads what lies on the host, and may take many times what the step of the
    others would. What it takes longer is theirs afterwards: until they had as much, the long one rests. So it takes
    half of the time at most. Where reading the host costs nothing, as on a CPU, it rests for nobody.

    A step may be planned before the one under way has ended: then the last long step tells what this one takes.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._owed = 0.0  # seconds, to the others
        self._usual = 0.0  # of their latest step alone
        self._longer = 0.0  # than that, the latest step with a long sequence
        self._ended = 0.0

    @property
    def resting(self) -> bool:
        """Whether a whole step at least is owed."""
        return self._owed > 0.0 and self._owed >= self._usual

    def begin(self, plan: StepPlan, planned: list[Sequence]) -> Turn:
        decodes = planned[: plan.num_decodes]
        count = sum(sequence.request.oversized for sequence in decodes)
        others = count < len(decodes)
        charge = self._longer if count and others else 0.0
        self._owed = self._owed + charge if others or not count else 0.0
        return Turn(self._clock(), count > 0, others, len(decodes) == len(planned) > 0, charge)

    def end(self, turn: Turn) -> None:
        """Steps end in the order in which they began."""
        now = self._clock()
        took = now - max(turn.began, self._ended)
        self._ended = now
        if turn.oversized:
            if turn.others and turn.decodes_only:
                self._usual = min(took, self._usual * (1.0 - FORGOTTEN))
                self._longer = took - self._usual
                self._owed = max(0.0, self._owed + self._longer - turn.charge)
            return
        self._owed = max(0.0, self._owed - took)
        if turn.decodes_only:
            self._usual = min(took, 2.0 * self._usual or took)
