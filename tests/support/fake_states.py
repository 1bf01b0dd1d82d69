"""States of the fake model: the hash of all tokens that a sequence has seen, one a slot.

A stale, missing or double update of a state, a slot of the wrong sequence and a snapshot of the wrong place all make
another hash than that of the tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from octavo_worker.contract.step import SequenceStep, StepPlan

Seen = tuple[int, bytes]
"""How many tokens a state has seen, and their hash."""
NOTHING: Seen = (0, b"")
NONSENSE: Seen = (-1, b"nonsense")


def advanced(state: Seen, tokens: Iterable[int]) -> Seen:
    """The state after more tokens."""
    count, digest = state
    for token in tokens:
        count, digest = count + 1, blake2b(digest + token.to_bytes(8, "big", signed=True), digest_size=8).digest()
    return count, digest


class FakeStates:
    """Slots of the device, from 1 on, and of the host, behind `first_host` + 1. Checks that plans keep the contract."""

    def __init__(self, slots: int, host_slots: int, first_host: int) -> None:
        self.slots, self.host_slots, self.first_host = slots, host_slots, first_host
        self.stored: dict[int, Seen] = {}
        self.kept = 0
        self._lock = threading.Lock()
        self.leaving: dict[int, int] = {}  # host slot -> slot that is still to be copied there

    def check(self, plan: StepPlan) -> None:
        """Asserts that no slot is touched twice in a way that depends on an order."""
        written: list[int] = []
        reads: dict[int, set[int]] = {}
        for place, step in enumerate(plan.sequences):
            move = step.state
            assert move is not None, "a sequence of a model with states, and no word about its state"
            kept = [slot for _, slot in move.keeps]
            written += kept + ([move.write] if move.write else [])
            reads.setdefault(move.read, set()).add(place)
            assert move.read not in kept, "a state is kept where it is read"
            afters = [after for after, _ in move.keeps]
            assert afters == sorted(set(afters)), "keeps out of order"
            assert not afters or afters[0] >= 1, "a state is kept that the step does not compute"
            assert 0 not in kept, "a state is kept nowhere"
            assert all(0 <= slot < self.slots for slot in (move.read, move.write, *kept)), "no slot of the device"
        assert len(written) == len(set(written)), "a slot is written twice"
        for place, step in enumerate(plan.sequences):
            assert step.state is not None
            for slot in (step.state.write, *(slot for _, slot in step.state.keeps)):
                others = reads.get(slot, set()) - {place} if slot else set()
                assert not others, "a slot is read by one sequence and written by another"
        self._check_swaps(plan, set(written))

    def _check_swaps(self, plan: StepPlan, written: set[int]) -> None:
        hosts = [host for _, host in plan.state_out] + [host for host, _ in plan.state_in]
        assert len(hosts) == len(set(hosts)), "a host slot takes part in two copies"
        assert all(self.first_host < host < self.first_host + self.host_slots for host in hosts), "no slot of the host"
        leaving, loaded = {slot for slot, _ in plan.state_out}, [slot for _, slot in plan.state_in]
        assert len(loaded) == len(set(loaded)), "two states come back into one slot"
        assert all(0 < slot < self.slots for slot in (*leaving, *loaded)), "no slot of the device"
        assert not leaving & written, "a state is overwritten that leaves for the host"
        own = {step.state.write for step in plan.sequences if step.state and step.state.read == step.state.write}
        assert not (set(loaded) & written) - own, "a state is overwritten that comes from the host"

    def swap_in(self, plan: StepPlan) -> None:
        self.flush(host for host, _ in plan.state_in)
        for host, slot in plan.state_in:
            assert host in self.stored, "a host slot is read that was never written"
            self.stored[slot] = self.stored[host]

    def swap_out(self, plan: StepPlan) -> None:
        """As late as the contract allows: when the result of the step is asked for, or a later one needs it there."""
        with self._lock:
            for slot, host in plan.state_out:
                assert host not in self.leaving, "a host slot is the target of two copies under way"
                self.leaving[host] = slot

    def flush(self, hosts: Iterable[int]) -> None:
        with self._lock:
            self._flush(hosts)

    def _flush(self, hosts: Iterable[int]) -> None:
        for host in hosts:
            if (slot := self.leaving.pop(host, None)) is not None:
                self.stored[host] = self.stored[slot]

    def move(
        self, plan: StepPlan, steps: Sequence[SequenceStep], histories: Sequence[Sequence[int]], *, late: bool
    ) -> None:
        """Computes the states of a step, and asserts that they have seen `histories`. Those that leave for the host do
        so at the end of the step, or `late`."""
        self.swap_out(plan)
        for (count, seen), history in zip(self.compute(steps), histories, strict=True):
            if len(history) == count:  # else a window hides the beginning
                assert advanced(NOTHING, history) == (count, seen), "a state has seen other tokens"
        if not late:
            self.flush(host for _, host in plan.state_out)

    def compute(self, steps: Sequence[SequenceStep]) -> list[Seen]:
        """Moves all states of a step. Returns those after the last token of each sequence."""
        states = [self._read(step) for step in steps]
        return [self._store(step, state) for step, state in zip(steps, states, strict=True)]

    def _read(self, step: SequenceStep) -> Seen:
        assert step.state is not None
        if not step.state.read:
            assert step.start == 0, "a sequence that goes on begins with zeros"
            return NOTHING
        assert step.state.read in self.stored, "a slot is read that was never written"
        state = self.stored[step.state.read]
        assert state[0] == step.start, f"a state has seen {state[0]} tokens, the step begins behind {step.start}"
        return state

    def _store(self, step: SequenceStep, state: Seen) -> Seen:
        assert step.state is not None
        keeps = dict(step.state.keeps)
        for number, token in enumerate(step.tokens, 1):
            state = advanced(state, (token,))
            if number in keeps:
                self.stored[keeps[number]] = state
                self.kept += 1
        if step.state.write:
            self.stored[step.state.write] = state
        return state

    def spoil(self, plan: StepPlan) -> None:
        """Write nonsense wherever the plan writes."""
        targets = [target for _, target in (*plan.state_out, *plan.state_in)]
        for step in plan.sequences:
            if step.state is not None:
                targets += [step.state.write, *(slot for _, slot in step.state.keeps)]
        self.stored.update(dict.fromkeys(targets, NONSENSE))
