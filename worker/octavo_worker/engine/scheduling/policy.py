"""Scheduling policy: the order of requests, admission, preemption and aging."""

from __future__ import annotations

import math
from collections.abc import Sequence as Listing
from typing import Protocol

from octavo_worker.contract.messages import BATCH, NORMAL
from octavo_worker.engine.scheduling.forecast import are_short, most_growth, peak_growth
from octavo_worker.engine.scheduling.running import RunningBatch
from octavo_worker.engine.scheduling.waiting import WaitingQueue
from octavo_worker.engine.sequence import Request, Sequence

RISEN_SHARE = {NORMAL: 9, BATCH: 33}
"""A class gets one of so many rows by waiting, at least one request: as often as the queue hands out its jobs where
higher ones never end."""

BATCH_PACE = 32.0
"""Tokens a second that a sequence of the class batch is reckoned to get."""


class SchedulingPolicy(Protocol):
    """Decides between requests. It neither sees blocks nor changes anything: the `BatchManager` acts on its answers.

    `gives_way`: running requests of a class make room for those of higher ones.
    """

    gives_way: bool

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

    def guest(self, running: RunningBatch, waiting: WaitingQueue) -> Request | None:
        """The request to go first in the class of the queue's head, as its tenant runs less than another; mostly
        None."""
        ...

    def yielding(self, running: RunningBatch, guest: Request) -> list[Request]:
        """Requests of the guest's class that give way for it, the first to go first."""
        ...

    def promote(self, request: Request) -> int | None:
        """The class that a request rises to by waiting; None if it keeps its own."""
        ...

    def may_rise(self, request: Request, risen_rows: int, max_running: int) -> bool:
        """True if a request may rise above its class, of which `risen_rows` rows have risen and not ended."""
        ...

    def rests(self, oversized: Request, other: Request) -> bool:
        """True if an oversized request shares the device's time with another one that decodes."""
        ...

    def pauses(self, request: Request, other: Request) -> bool:
        """True if a request sits out steps that compute the prompt of another one, now and then, and has less of those
        that decode it."""
        ...


class PriorityPolicy:
    """High classes first. Within a class those that rose to it go first, then guests, then those whose readers are in
    mid-stream, then the earliest deadline, then the earliest turn.

    Running requests give way to higher classes. Within a class the tenant that runs most gives way to one that runs
    less, whose request is then a guest.

    The turn of a request is its arrival. In the class batch it is the moment at which its longest sequence would have
    to begin to end together with the others. Of requests that came together, the longest goes first: what is left at
    the end is then short, and does not run alone on a GPU (Graham, "Bounds on multiprocessing timing anomalies", SIAM
    1969). A later request overtakes by as much as it is longer and no more, so none starves. Output lengths are not
    known, only their limits.
    """

    gives_way = True

    def order(self, request: Request) -> tuple[float, ...]:
        place = 0 if request.has_risen else 1 if request.is_guest else 2 if request.resumed else 3
        deadline = math.inf if request.deadline is None else request.deadline
        turn = request.arrived
        if request.base_priority == BATCH:
            turn -= request.max_new_tokens / BATCH_PACE
        return request.priority, place, deadline, turn, request.arrival

    def may_admit(self, gang: Listing[Sequence], running: RunningBatch, room: int) -> bool:
        """A request of the class batch begins only if all can grow: a preempted sequence loses what it computed, except
        for what finds room on the host. One that is about as long as those that run begins all the same: later it would
        run alone."""
        if gang[0].request.priority != BATCH or gang[0].request.is_guest:
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

    def guest(self, running: RunningBatch, waiting: WaitingQueue) -> Request | None:
        """The first of the tenant that runs least, if it then has no more than another."""
        head = waiting.head()
        if head is None or head.request.has_risen:
            return None
        rows, waits = running.tenants[head.request.priority], waiting.tenants[head.request.priority]
        if not rows or rows.keys() | waits.keys() == {head.request.salt}:
            return None
        poorest = min(waits, key=rows.__getitem__)
        found = waiting.first(lambda sequence: sequence.request.salt == poorest)
        if found is None or rows[poorest] + found.request.rows > max(rows.values()):
            return None
        return found.request

    def yielding(self, running: RunningBatch, guest: Request) -> list[Request]:
        """The last of the tenant that runs most, again and again. No tenant is left with less than the guest's then
        has: what gave way would have to come back at once."""
        rows, found = running.tenants[guest.priority].copy(), list[Request]()
        least = rows[guest.salt] + guest.rows
        backwards = [request for request in running.backwards(guest.priority) if not request.has_risen]
        while rows:
            richest = max(rows, key=rows.__getitem__)
            last = next((r for r in backwards if r.salt == richest and r not in found), None)
            if last is None or richest == guest.salt or rows[richest] - last.rows < least:
                break
            rows[richest] -= last.rows
            found.append(last)
        return found

    def promote(self, request: Request) -> int | None:
        """Waiting raises a request by a class, so that no class starves another."""
        return request.priority - 1 if request.priority > 0 else None

    def may_rise(self, request: Request, risen_rows: int, max_running: int) -> bool:
        """Few at a time: what has risen does not give way any more, and higher classes would have to wait for it."""
        share = max_running // RISEN_SHARE[request.base_priority]
        return request.has_risen or risen_rows == 0 or risen_rows + request.rows <= share

    def rests(self, oversized: Request, other: Request) -> bool:
        return other.priority <= oversized.priority

    def pauses(self, request: Request, other: Request) -> bool:
        """A single job of the class batch is not awaited, the first token of a higher one is."""
        return request.priority == BATCH > other.priority


class FcfsPolicy:
    """First come, first served: classes, tenants, deadlines and lengths are ignored."""

    gives_way = False

    def order(self, request: Request) -> tuple[float, ...]:
        return (request.arrival,)

    def may_admit(self, gang: Listing[Sequence], running: RunningBatch, room: int) -> bool:
        return True

    def victim(self, running: RunningBatch, head: Request | None = None) -> Request | None:
        """The latest arrival, and none for the head of the queue, which came after all that run."""
        return running.last() if head is None else None

    def guest(self, running: RunningBatch, waiting: WaitingQueue) -> Request | None:
        return None

    def yielding(self, running: RunningBatch, guest: Request) -> list[Request]:
        return []

    def promote(self, request: Request) -> int | None:
        return None

    def may_rise(self, request: Request, risen_rows: int, max_running: int) -> bool:
        return False

    def rests(self, oversized: Request, other: Request) -> bool:
        return True

    def pauses(self, request: Request, other: Request) -> bool:
        return False
