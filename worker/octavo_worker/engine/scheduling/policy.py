"""Scheduling policy: the order of requests, admission, preemption and aging."""

from __future__ import annotations

import math
from collections.abc import Sequence as Listing
from typing import Protocol

from octavo_worker.contract.messages import BATCH
from octavo_worker.engine.scheduling.forecast import are_short, most_growth, peak_growth
from octavo_worker.engine.scheduling.running import RunningBatch
from octavo_worker.engine.sequence import Request, Sequence

BATCH_PACE = 32.0
"""Tokens a second that a sequence of the class batch is reckoned to get."""


class SchedulingPolicy(Protocol):
    """Decides between requests. It neither sees blocks nor changes anything: the `BatchManager` acts on its answers."""

    def order(self, request: Request) -> tuple[float, ...]:
        """The request's place: smaller ones are admitted first and preempted last. It must be unique."""
        ...

    def may_admit(self, gang: Listing[Sequence], running: RunningBatch, room: int) -> bool:
        """True if waiting sequences of one request, which fit now, should join those that run. `room` is the number of
        tokens by which all of them can grow."""
        ...

    def victim(self, running: RunningBatch, head: Request | None = None) -> Request | None:
        """The request to preempt when a running sequence finds no block, or so that the `head` of the queue can run.
        None: the head must wait."""
        ...

    def promote(self, request: Request) -> int | None:
        """The class that a request rises to by waiting; None if it keeps its own."""
        ...

    def rests(self, oversized: Request, other: Request) -> bool:
        """True if an oversized request shares the device's time with another one that decodes."""
        ...


class PriorityPolicy:
    """High classes first, within a class the earliest deadline, then the earliest turn.

    The turn of a request is its arrival. In the class batch it is the moment at which its longest sequence would have
    to begin to end together with the others. Of requests that came together, the longest goes first: what is left at
    the end is then short, and does not run alone on a GPU (Graham, "Bounds on multiprocessing timing anomalies", SIAM
    1969). A later request overtakes by as much as it is longer and no more, so none starves. Output lengths are not
    known, only their limits.
    """

    def order(self, request: Request) -> tuple[float, ...]:
        deadline = math.inf if request.deadline is None else request.deadline
        turn = request.arrived
        if request.base_priority == BATCH:
            turn -= request.max_new_tokens / BATCH_PACE
        return request.priority, deadline, turn, request.arrival

    def may_admit(self, gang: Listing[Sequence], running: RunningBatch, room: int) -> bool:
        """A request of the class batch begins only if all can grow: a preempted sequence loses what it computed, except
        for what finds room on the host. One that is about as long as those that run begins all the same: later it would
        run alone."""
        if gang[0].request.priority != BATCH:
            return True
        width = running.width + sum(sequence.width for sequence in gang)
        if most_growth(width) <= room or not are_short(gang, running):
            return True
        growing = [sequence for sequence in (*running, *gang) if not sequence.request.oversized]
        return peak_growth(growing) <= room

    def victim(self, running: RunningBatch, head: Request | None = None) -> Request | None:
        """The last in order. An aged request is admitted first but never preempts its original class; otherwise waiting
        and running requests would swap places forever."""
        last = running.last()
        return last if head is None or last.priority > head.base_priority else None

    def promote(self, request: Request) -> int | None:
        """Waiting raises a request by a class, so that no class starves another."""
        return request.priority - 1 if request.priority > 0 else None

    def rests(self, oversized: Request, other: Request) -> bool:
        return other.priority <= oversized.priority


class FcfsPolicy:
    """First come, first served: classes, deadlines and lengths are ignored."""

    def order(self, request: Request) -> tuple[float, ...]:
        return (request.arrival,)

    def may_admit(self, gang: Listing[Sequence], running: RunningBatch, room: int) -> bool:
        return True

    def victim(self, running: RunningBatch, head: Request | None = None) -> Request | None:
        """The latest arrival, and none for the head of the queue, which came after all that run."""
        return running.last() if head is None else None

    def promote(self, request: Request) -> int | None:
        return None

    def rests(self, oversized: Request, other: Request) -> bool:
        return True
