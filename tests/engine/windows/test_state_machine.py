"""Any order of prompts, forks, beams, turns, aborts, failed steps, pins and preemptions keeps the accounts of both
groups of blocks, and of states where there are any, and every token. Each token hashes what both tables hold."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from fake_runner import DelayedRunner, FakeRunner
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test
from memory_machine import SIZE, MemoryMachine
from slab_sizes import shared_memory
from tiers import is_full, many_examples

MOST_RUNS = 4
"""Runs until each kind of thing has happened, as what one of them draws is luck."""


class Engine(MemoryMachine):
    """An engine whose model has two groups of blocks, which may share their memory, of `slots` for states or without,
    and of `budgets`."""

    done: ClassVar[Counter[str]] = Counter()
    slots: ClassVar[tuple[int, ...]] = (0,)
    budgets: ClassVar[tuple[int, ...]] = (3, 7, 64)

    @initialize(
        blocks=st.integers(12, 40),
        window=st.sampled_from([2, 4, 5, 13]),
        windows=st.integers(6, 24),
        hosts=st.sampled_from([(0, 0), (40, 40), (40, 6), (10, 40)]),
        which=st.integers(0, 11),
        device=st.sampled_from([FakeRunner, DelayedRunner]),
        drafts=st.sampled_from([0, 0, 3]),
        each=st.sampled_from([None, (1, 1), (3, 1), (5, 2)]),
    )
    def start(
        self,
        blocks: int,
        window: int,
        windows: int,
        hosts: tuple[int, int],
        which: int,
        device: type[FakeRunner],
        drafts: int,
        each: tuple[int, int] | None,
    ) -> None:
        slots, budget = self.slots[which % len(self.slots)], self.budgets[which % len(self.budgets)]
        memory = {"num_host_blocks": hosts[0], "state_slots": slots, "host_state_slots": 20 if slots else 0}
        shape = {"window_blocks": windows, "layer_window": window}
        if each is not None:
            blocks, shape = shared_memory(blocks // 2, window, SIZE, each)
        memory |= {**shape, "host_window_blocks": hosts[1]}
        interval = {"state_interval": 3 * SIZE} if slots else {}
        self.begin(blocks, device, memory, drafts=drafts, token_budget=budget, **interval)


@pytest.mark.parametrize("budget", [3, 7, 64])
@pytest.mark.parametrize("slots", [(0,), (7, 12)], ids=["keys", "states"])
def test_any_order_keeps_accounts_of_both_groups(slots: tuple[int, ...], budget: int, capsys) -> None:
    """25,000 steps in the full tier, 100,000 in the long one, in which everything happens somewhere."""
    Engine.done.clear()
    Engine.slots, Engine.budgets = slots, (budget,)
    count = many_examples(43, quick=5)
    kinds = [
        "turns",
        "failures",
        "hits",
        "windowless",
        "swaps",
        "recomputed",
        "drafts",
        *(["kept"] if slots[0] else []),
    ]
    for _ in range(MOST_RUNS if is_full() else 1):
        run_state_machine_as_test(Engine, settings=settings(max_examples=count, stateful_step_count=100, deadline=None))
        if all(Engine.done[kind] for kind in kinds):
            break
    with capsys.disabled():
        print(f"\nstate machine of two groups: {dict(Engine.done.most_common())}")
    assert not is_full() or {kind: Engine.done[kind] for kind in kinds if Engine.done[kind] == 0} == {}
    assert Engine.done["steps"] > 0
