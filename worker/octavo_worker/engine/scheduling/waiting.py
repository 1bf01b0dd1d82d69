"""The queue of sequences that wait for admission."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from octavo_worker.engine.sequence import Sequence, by_order


def tally(sequences: Iterable[Sequence], weight: Callable[[Sequence], int]) -> dict[int, Counter[bytes]]:
    """The weights of sequences by class and tenant, for checks."""
    counts: defaultdict[int, Counter[bytes]] = defaultdict(Counter)
    for sequence in sequences:
        counts[sequence.request.priority][sequence.request.salt] += weight(sequence)
    return dict(counts)


class WaitingQueue:
    """Waiting sequences in the order of the scheduling policy.

    No sequence overtakes the head: a request with a long prompt is not starved by short ones behind it. A preempted
    sequence returns to where its order puts it, before those that came later. Operations move memory, at 10,000 waiting
    about 10 us. `tenants` counts them by class and tenant.
    """

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self.tenants: defaultdict[int, Counter[bytes]] = defaultdict(Counter)

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def push(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=by_order)
        self.tenants[sequence.request.priority][sequence.request.salt] += 1

    def head(self) -> Sequence | None:
        return self._sequences[0] if self._sequences else None

    def first(self, suits: Callable[[Sequence], bool]) -> Sequence | None:
        """The first in order that `suits`. Costs those before it."""
        return next(filter(suits, self._sequences), None)

    def remove(self, sequence: Sequence) -> None:
        """Call it before the order of the sequence changes. `ValueError` if it does not wait."""
        position = bisect_left(self._sequences, sequence.order, key=by_order)
        if position == len(self._sequences) or self._sequences[position] is not sequence:
            raise ValueError("this sequence does not wait")
        del self._sequences[position]
        waiting, salt = self.tenants[sequence.request.priority], sequence.request.salt
        waiting[salt] -= 1
        if not waiting[salt]:
            del waiting[salt]

    def check_integrity(self, expected: set[Sequence]) -> None:
        """`AssertionError` unless exactly `expected` wait, in order."""
        if len(self) != len(expected) or set(self._sequences) != expected:
            raise AssertionError("waiting sequences and their requests disagree")
        if sorted(self._sequences, key=by_order) != self._sequences:
            raise AssertionError("waiting sequences are out of order")
        if tally(self._sequences, lambda sequence: 1) != {kind: count for kind, count in self.tenants.items() if count}:
            raise AssertionError("waiting sequences are counted wrongly by tenant")
