"""A machine of any order of prompts, forks, beams, turns, aborts, failed steps, pins and preemptions, over any kinds of
memory. It keeps the accounts of all pools and every token."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from engine_driver import Driver, expected_beams, expected_tokens, make_request
from fake_runner import FakeRunner
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from proposers import AnswerBook, speculate

from octavo_worker.contract.messages import AddRequest, BeamOptions, PinPrefix
from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.cost import Decision, PreemptionPolicy, Victim

SIZE = 4
SALTS = (b"one", b"two")


class Chosen(PreemptionPolicy):
    """Swaps or recomputes as it was told to last."""

    swap = True

    def decide(self, victim: Victim, host: BlockPool | None) -> Decision:
        return super().decide(victim, host) if self.swap else Decision.CHEAPER


class MemoryMachine(RuleBasedStateMachine):
    """An engine with little memory, which a subclass begins with. `done` counts what was not in vain, over all runs."""

    done: ClassVar[Counter[str]] = Counter()

    def begin(
        self, blocks: int, device: type[FakeRunner], memory: dict[str, int], *, drafts: int, **scheduler: Any
    ) -> None:
        """`memory` is that of the runner beside its blocks."""
        self.policy, self.book = Chosen("swap"), AnswerBook({}, 0.7)
        self.driver = Driver.create(
            blocks,
            SIZE,
            device=device,
            runner={"max_model_len": 80, **memory},
            policy=self.policy,
            speculation=speculate(self.book, drafts) if drafts else None,
            **scheduler,
        )
        self.requests: dict[str, AddRequest] = {}
        self.aborted: set[str] = set()
        self.pins: list[str] = []
        self.pinned = 0

    @precondition(lambda self: len(self.requests) - len(self.driver.reasons) < 6)
    @rule(
        common=st.integers(0, 18),
        own=st.lists(st.integers(0, 1), min_size=1, max_size=6),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        tokens=st.integers(1, 14),
        salt=st.sampled_from(SALTS),
        priority=st.integers(0, 2),
    )
    def ask(self, common: int, own: list[int], n: int, tokens: int, salt: bytes, priority: int) -> None:
        """Many begin alike."""
        name = str(len(self.requests))
        self._add(make_request(name, [*range(common), *own], max_tokens=tokens, n=n, salt=salt, priority=priority))

    @precondition(lambda self: len(self.requests) - len(self.driver.reasons) < 6)
    @rule(common=st.integers(1, 12), width=st.integers(1, 4), tokens=st.integers(1, 8), priority=st.integers(0, 2))
    def search(self, common: int, width: int, tokens: int, priority: int) -> None:
        name, beam = str(len(self.requests)), BeamOptions(width)
        self._add(make_request(name, range(common), max_tokens=tokens, n=width, priority=priority, beam=beam))

    @precondition(lambda self: self.driver.reasons)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=3), tokens=st.integers(1, 6))
    def go_on(self, data: st.DataObject, more: list[int], tokens: int) -> None:
        """A turn of a chat: the text of an earlier one, and more."""
        name, index = data.draw(st.sampled_from(sorted(self.driver.reasons)))
        before = self.requests[name]
        text = [*before.prompt, *self.driver.tokens[name, index], *more]
        if len(text) < 60:
            self._add(make_request(str(len(self.requests)), text, max_tokens=tokens, salt=before.salt))
            self.done["turns"] += 1

    def _add(self, request: AddRequest) -> None:
        self.requests[request.id] = request
        if request.sampling.beam is None:
            answers = [expected_tokens(request, given.index, max_model_len=80) for given in request.sequences]
            self.book.answers.setdefault(tuple(request.prompt), []).extend(answers)
        self.driver.add(request)

    @rule(swap=st.booleans())
    def step_on(self, swap: bool) -> None:
        self.step(6, swap)

    @rule(times=st.integers(1, 4), swap=st.booleans())
    def step(self, times: int, swap: bool) -> None:
        self.policy.swap = swap
        for _ in range(times):
            if self.driver.busy:
                self.driver.step()
                self.done["steps"] += 1

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        request = self.requests[name]
        index = data.draw(st.sampled_from([None, *(given.index for given in request.sequences)]))
        self.driver.scheduler.abort(name, index)
        self.aborted.add(name)

    @precondition(lambda self: self.driver.pipeline.is_empty and self.driver.busy)
    @rule(steps=st.integers(1, 2))
    def fail(self, steps: int) -> None:
        """Steps are planned and come to nothing, and what the model would have stored is nonsense."""
        scheduler, plans = self.driver.scheduler, []
        while len(plans) < steps and scheduler.can_plan and (plan := scheduler.plan()) is not None:
            plans.append(plan)
            self.driver.runner.spoil(plan)
        if plans:
            scheduler.abandon(plans[0])
            self.done["failures"] += 1

    @precondition(lambda self: len(self.pins) < 2)
    @rule(length=st.integers(SIZE, 4 * SIZE), salt=st.sampled_from(SALTS))
    def pin(self, length: int, salt: bytes) -> None:
        self.pins.append(f"pin{self.pinned}")
        self.pinned += 1
        self.driver.scheduler.pin(PinPrefix(self.pins[-1], list(range(length)), salt))

    @precondition(lambda self: self.pins)
    @rule(place=st.integers(0, 1))
    def unpin(self, place: int) -> None:
        self.driver.scheduler.kv.pinned.unpin(self.pins.pop(place % len(self.pins)))

    @invariant()
    def accounts_are_right(self) -> None:
        kv = self.driver.scheduler.kv
        self.driver.scheduler.check_integrity()
        pools = [group.pool for group in kv.groups] + ([] if kv.states is None else [kv.states.pool])
        for pool in pools:
            assert pool.free + pool.used + pool.cached + pool.quarantined == pool.total
        if self.driver.pipeline.is_empty and kv.states is not None:
            assert not kv.states.snapshots.pending
            assert not kv.states.snapshots.coming

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        for name in self.pins:
            self.driver.scheduler.kv.pinned.unpin(name)
        self.driver.run()
        self.driver.runner.close()
        for name, request in self.requests.items():
            self._check(name, request)
        stats = self.driver.scheduler.stats()
        self.done["hits"] += stats.cached_tokens > 0
        self.done["stateless"] += stats.stateless_tokens > 0
        self.done["swaps"] += stats.swapped_out
        self.done["recomputed"] += stats.preemptions - stats.swapped_out
        self.done["drafts"] += stats.accepted_tokens
        states = self.driver.runner.states
        self.done["kept"] += 0 if states is None else states.kept
        self.done["windowless"] += stats.windowless_tokens > 0

    def _check(self, name: str, request: AddRequest) -> None:
        if request.sampling.beam is not None:
            expected = expected_beams(request, max_model_len=80)
        else:
            expected = [expected_tokens(request, given.index, max_model_len=80) for given in request.sequences]
        for given, answer in zip(request.sequences, expected, strict=True):
            tokens = self.driver.tokens[name, given.index]
            whole = name not in self.aborted and name not in self.driver.failed
            assert tokens == (answer if whole else answer[: len(tokens)])
