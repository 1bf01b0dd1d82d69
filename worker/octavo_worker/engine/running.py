"""Who runs: sequences that compute their prompt, and sequences that decode."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from octavo_worker.engine.sequence import Sequence, State

by_order = attrgetter("order")


class RunningBatch:
    """The admitted sequences, `prefilling` and `decoding`, each sorted by (class, arrival, index).

    `width` counts the sequences that they are or will fork into.
    """

    def __init__(self) -> None:
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.width = 0

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def admit(self, sequence: Sequence, position: int) -> None:
        """Start computing a prompt, as the one at `position`."""
        sequence.state = State.RUNNING
        self.width += sequence.width
        self.prefilling.insert(position, sequence)

    def leave_prompt(self, sequence: Sequence, children: list[Sequence]) -> None:
        """A prompt is computed: it decodes from now on, and so do its forks, which were counted in its width."""
        self.prefilling.remove(sequence)
        for decoding in (sequence, *children):
            insort(self.decoding, decoding, key=by_order)

    def remove(self, sequence: Sequence) -> None:
        (self.prefilling if sequence in self.prefilling else self.decoding).remove(sequence)
        self.width -= sequence.width

    def victim(self) -> Sequence:
        """Who gives way when memory runs out: the last in order, of either kind."""
        return max((kind[-1] for kind in (self.prefilling, self.decoding) if kind), key=by_order)

    def check_integrity(self, expected: set[Sequence]) -> None:
        """`AssertionError` unless exactly `expected` run, in order and counted."""
        if len(self) != len(expected) or {*self.prefilling, *self.decoding} != expected:
            raise AssertionError("running sequences and their requests disagree")
        if self.width != sum(sequence.width for sequence in expected):
            raise AssertionError("width of the batch is wrong")
        if any(sorted(kind, key=by_order) != kind for kind in (self.prefilling, self.decoding)):
            raise AssertionError("running sequences are out of order")
