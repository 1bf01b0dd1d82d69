"""Any order of prompts, forks, beams, turns, aborts, failed steps, pins and preemptions keeps the accounts of both
groups of blocks, and of states where there are any, and every token. Each token hashes what both tables hold."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from fake_runner import DelayedRunner, FakeRunner
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test
from memory_machine import SIZE, MemoryMachine
from tiers import examples


class Engine(MemoryMachine):
    """An engine whose model has two groups of blocks; half of them keep states, too."""

    done: ClassVar[Counter[str]] = Counter()

    @initialize(
        blocks=st.integers(12, 40),
        window=st.sampled_from([2, 4, 5, 13]),
        windows=st.integers(6, 24),
        hosts=st.sampled_from([(0, 0), (40, 40), (40, 6), (10, 40)]),
        slots=st.sampled_from([0, 0, 7, 12]),
        budget=st.sampled_from([3, 7, 64]),
        device=st.sampled_from([FakeRunner, DelayedRunner]),
        drafts=st.sampled_from([0, 0, 3]),
    )
    def start(
        self,
        blocks: int,
        window: int,
        windows: int,
        hosts: tuple[int, int],
        slots: int,
        budget: int,
        device: type[FakeRunner],
        drafts: int,
    ) -> None:
        memory = {"num_host_blocks": hosts[0], "state_slots": slots, "host_state_slots": 20 if slots else 0}
        memory |= {"window_blocks": windows, "layer_window": window, "host_window_blocks": hosts[1]}
        interval = {"state_interval": 3 * SIZE} if slots else {}
        self.begin(blocks, device, memory, drafts=drafts, token_budget=budget, **interval)


def test_any_order_keeps_accounts_of_both_groups(capsys) -> None:
    Engine.done.clear()
    count = examples(1000, quick=25)
    run_state_machine_as_test(Engine, settings=settings(max_examples=count, stateful_step_count=100, deadline=None))
    with capsys.disabled():
        print(f"\nstate machine of two groups: {dict(Engine.done.most_common())}")
    kinds = "turns", "failures", "hits", "windowless", "swaps", "recomputed", "drafts", "kept"
    assert count < 1000 or {kind: Engine.done[kind] for kind in kinds if Engine.done[kind] < 50} == {}
    assert Engine.done["hits"] > 0
