"""Any order of prompts, forks, beams, turns, aborts, failed steps, pins and preemptions keeps the accounts of both
pools and every token. The fake model refuses a state that has seen anything but the tokens of its sequence."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from fake_runner import DelayedRunner, FakeRunner
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test
from memory_machine import SIZE, MemoryMachine
from tiers import is_full, many_examples


class Engine(MemoryMachine):
    """An engine whose model keeps states."""

    done: ClassVar[Counter[str]] = Counter()

    @initialize(
        blocks=st.integers(12, 40),
        slots=st.integers(7, 16),
        hosts=st.sampled_from([0, 40, 40]),
        host_slots=st.sampled_from([0, 2, 20, 20]),
        budget=st.sampled_from([3, 7, 64]),
        interval=st.sampled_from([0, 0, SIZE, 3 * SIZE]),
        device=st.sampled_from([FakeRunner, DelayedRunner]),
        drafts=st.sampled_from([0, 0, 3]),
    )
    def start(
        self,
        blocks: int,
        slots: int,
        hosts: int,
        host_slots: int,
        budget: int,
        interval: int,
        device: type[FakeRunner],
        drafts: int,
    ) -> None:
        memory = {"num_host_blocks": hosts, "state_slots": slots, "host_state_slots": host_slots}
        self.begin(blocks, device, memory, drafts=drafts, token_budget=budget, state_interval=interval)


def test_any_order_keeps_accounts_and_states(capsys) -> None:
    """25,000 steps in the full tier, 100,000 in the long one."""
    Engine.done.clear()
    count = many_examples(250, quick=25)
    run_state_machine_as_test(Engine, settings=settings(max_examples=count, stateful_step_count=100, deadline=None))
    with capsys.disabled():
        print(f"\nstate machine of states: {dict(Engine.done.most_common())}")
    kinds = "turns", "failures", "hits", "stateless", "swaps", "recomputed", "drafts", "kept"
    assert not is_full() or {kind: Engine.done[kind] for kind in kinds if Engine.done[kind] < count / 20} == {}
    assert Engine.done["kept"] > 0
