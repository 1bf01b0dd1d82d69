"""The running batch: sequences in prefill, sequences that decode, and beams that wait for each other."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator

from octavo_worker.engine.scheduling.waiting import tally
from octavo_worker.engine.sequence import Request, Sequence, State, by_order


class RunningBatch:
    """The admitted sequences, `prefilling` and `decoding`, each in their order.

    Beams that were preempted compute their tokens again one after the other; those that are done are `holding` until
    the last of their group is done. `width` counts the sequences that all of these are or will fork into, `tenants` the
    same by class and tenant.
    """

    _run_ids = itertools.count(1)  # of all batches: a runner may serve several schedulers, one after the other

    def __init__(self) -> None:
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.holding: list[Sequence] = []
        self.width = 0
        self.tenants: defaultdict[int, Counter[bytes]] = defaultdict(Counter)

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.decoding) + len(self.holding)

    def __iter__(self) -> Iterator[Sequence]:
        return itertools.chain(self.prefilling, self.decoding, self.holding)

    def admit(self, sequence: Sequence) -> None:
        """Let a waiting sequence run: compute its prompt, or go on decoding if it was swapped while it did."""
        sequence.state = State.RUNNING
        sequence.run_id = next(self._run_ids)
        self.count(sequence, sequence.width)
        insort(self.decoding if sequence.decodes else self.prefilling, sequence, key=by_order)

    def hold(self, sequence: Sequence) -> None:
        """A beam's tokens are computed; it waits for the others of its group."""
        self.prefilling.remove(sequence)
        insort(self.holding, sequence, key=by_order)

    def unhold(self, sequence: Sequence) -> None:
        """A beam, whether it was held or not, decodes."""
        if not sequence.decodes:
            self.holding.remove(sequence)
            self._decode(sequence)

    def narrow(self, sequence: Sequence) -> list[int]:
        """Leave a sequence its first index. Returns the others."""
        others = sequence.indices[1:]
        del sequence.indices[1:]
        self.count(sequence, -len(others))
        return others

    def leave_prompt(self, sequence: Sequence) -> None:
        """A prompt is computed: it decodes from now on."""
        self.prefilling.remove(sequence)
        self._decode(sequence)

    def join(self, fork: Sequence) -> None:
        """A new fork decodes."""
        fork.request.sequences[fork.indices[0]] = fork
        fork.run_id = next(self._run_ids)
        self.count(fork, fork.width)
        self._decode(fork)

    def _decode(self, sequence: Sequence) -> None:
        sequence.decodes = True
        insort(self.decoding, sequence, key=by_order)

    def remove(self, sequence: Sequence) -> None:
        kind = self.decoding if sequence.decodes else self.prefilling
        (self.holding if sequence in self.holding else kind).remove(sequence)
        self.count(sequence, -sequence.width)

    def count(self, sequence: Sequence, rows: int) -> None:
        """A running sequence becomes `rows` more sequences, or so many fewer."""
        self.width += rows
        running, salt = self.tenants[sequence.request.priority], sequence.request.salt
        running[salt] += rows
        if not running[salt]:
            del running[salt]

    def has_oversized(self) -> bool:
        return any(sequence.request.oversized for kind in (self.prefilling, self.decoding) for sequence in kind)

    def backwards(self, priority: int) -> list[Request]:
        """The requests of a class, the last in order first."""
        found = (sequence for sequence in self if sequence.request.priority == priority)
        return list(dict.fromkeys(sequence.request for sequence in sorted(found, key=by_order, reverse=True)))

    def last(self) -> Request:
        """The request of the last sequence in order. Of a group whose members are holding, at least one computes."""
        return max((kind[-1] for kind in (self.prefilling, self.decoding) if kind), key=by_order).request

    def check_integrity(self, expected: set[Sequence]) -> None:
        """`AssertionError` unless exactly `expected` run, in order and counted."""
        kinds = (self.prefilling, self.decoding, self.holding)
        if len(self) != len(expected) or {sequence for kind in kinds for sequence in kind} != expected:
            raise AssertionError("running sequences and their requests disagree")
        if self.width != sum(sequence.width for sequence in expected):
            raise AssertionError("width of the batch is wrong")
        counted = {kind: count for kind, count in self.tenants.items() if count}
        if tally(expected, lambda sequence: sequence.width) != counted:
            raise AssertionError("running sequences are counted wrongly by tenant")
        if any(sorted(kind, key=by_order) != kind for kind in kinds):
            raise AssertionError("running sequences are out of order")
