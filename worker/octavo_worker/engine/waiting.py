"""Who is admitted next."""

from __future__ import annotations

from collections import OrderedDict

from octavo_worker.engine.sequence import Sequence

PRIORITIES = (0, 1, 2)  # high, normal, batch


class WaitingQueue:
    """First come first served within a priority class, high classes first. Every operation costs O(1).

    Nobody overtakes the head: a long request is not starved by short ones behind it. A preempted sequence comes back
    to the front of its class.
    """

    def __init__(self) -> None:
        self._classes: tuple[OrderedDict[Sequence, None], ...] = tuple(OrderedDict() for _ in PRIORITIES)

    def __len__(self) -> int:
        return sum(map(len, self._classes))

    def push(self, sequence: Sequence) -> None:
        self._classes[sequence.request.priority][sequence] = None

    def push_front(self, sequence: Sequence) -> None:
        queue = self._classes[sequence.request.priority]
        queue[sequence] = None
        queue.move_to_end(sequence, last=False)

    def head(self) -> Sequence | None:
        for queue in self._classes:
            if queue:
                return next(iter(queue))
        return None

    def remove(self, sequence: Sequence) -> None:
        del self._classes[sequence.request.priority][sequence]

    def check_integrity(self, expected: set[Sequence]) -> None:
        """`AssertionError` unless exactly `expected` wait."""
        if {sequence for queue in self._classes for sequence in queue} != expected:
            raise AssertionError("waiting sequences and their requests disagree")
