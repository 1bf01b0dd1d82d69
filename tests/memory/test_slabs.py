"""Two pools share a memory: a slab is with one of them, and nothing that is in use changes hands."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tiers import examples

from octavo_worker.contract.windows import Slabs
from octavo_worker.memory.slabs import SharedMemory, SlabPool


def memory(slabs: int = 6, kept: int = 2) -> SharedMemory:
    return SharedMemory(slabs, kept, blocks_each=4, windows_each=2)


def test_all_but_what_is_kept_begins_as_blocks() -> None:
    shared = memory()
    assert (shared.blocks.available, shared.windows.available) == (16, 3)
    assert shared.blocks.allocate(2) == [8, 9], "those of slabs that are here"
    assert shared.windows.allocate(3) == [1, 2, 3]
    shared.check_integrity()


def test_windows_take_whole_slabs_and_give_them_back() -> None:
    shared = memory()
    assert shared.even_out(16, 3 - 6) == (16 - 8, 1), "two slabs"
    assert (shared.blocks.available, shared.windows.available) == (8, 7)
    windows = shared.windows.allocate(7)
    assert shared.even_out(8 - 9, 0) == (8 - 9, 0), "all windows are in use"
    shared.windows.release(windows)
    assert shared.even_out(8 - 16, 7 - 3) == (0, 0)
    assert (shared.blocks.total, shared.windows.total) == (16, 3)


def test_nothing_moves_that_is_not_enough() -> None:
    shared = memory()
    assert shared.even_out(16, 3 - 12) == (16, -9), "four slabs have eight"
    assert shared.even_out(16 - 9, 3 - 6) == (7, -3), "blocks need all but one slab"
    assert shared.windows.total == 3
    assert shared.even_out(16, 3 - 11) == (0, 0)
    assert shared.even_out(-5, 11) == (3, 7)
    assert (shared.blocks.available, shared.windows.available, shared.obtainable) == (8, 7, 8)


def test_slabs_in_use_stay() -> None:
    shared = memory()
    used = shared.blocks.allocate(16)[::4]
    for slab in range(4):
        shared.blocks.release(range(8 + 4 * slab + 1, 12 + 4 * slab))
    assert (shared.blocks.available, shared.even_out(12, -1)) == (12, (12, -1)), "a block of each slab is in use"
    shared.blocks.release(used[2:3])
    assert shared.even_out(13, -1) == (9, 1)
    assert shared.windows.allocate(5)[:2] == [8, 9], "of slab 4"


def test_contents_are_forgotten_with_the_slab() -> None:
    shared = memory()
    (block,) = shared.blocks.allocate(1)
    shared.blocks.publish(block, b"content")
    shared.blocks.release([block])
    shared.even_out(16, 3 - 11)
    assert shared.blocks.find(b"content") is None
    shared.even_out(-16, 11)
    assert (shared.blocks.cached, shared.blocks.free) == (0, 16)


def publish_all(pool: SlabPool, name: str) -> None:
    blocks = pool.allocate(pool.available)
    for block in blocks:
        pool.publish(block, f"{name} {block}".encode())
    pool.release(blocks)


def test_blocks_take_the_older_slab_rather_than_evict() -> None:
    shared = memory()
    shared.even_out(shared.blocks.available, shared.windows.available - 5)
    publish_all(shared.windows, "old")
    publish_all(shared.blocks, "new")
    shared.even_out(shared.blocks.available - 1, shared.windows.available)
    assert (shared.blocks.cached, shared.blocks.free, shared.windows.total) == (12, 4, 3)
    shared.even_out(shared.blocks.available, shared.windows.available - 5)
    publish_all(shared.windows, "newer")
    shared.even_out(shared.blocks.available - 1, shared.windows.available)
    assert shared.windows.total == 5, "what the pool has is older"


def test_windows_take_empty_slabs_alone_rather_than_evict() -> None:
    shared = memory()
    publish_all(shared.windows, "window")
    shared.even_out(shared.blocks.available, shared.windows.available - 1)
    assert (shared.windows.cached, shared.windows.free) == (3, 2)
    publish_all(shared.windows, "more")
    publish_all(shared.blocks, "block")
    shared.even_out(shared.blocks.available, shared.windows.available - 1)
    assert shared.windows.free == 0


def test_a_slab_is_given_and_taken_once() -> None:
    shared = memory()
    with pytest.raises(ValueError, match="slab 0 is in use, or elsewhere"):
        shared.blocks.give(0)
    shared.blocks.allocate(1)
    with pytest.raises(ValueError, match="slab 2 is in use"):
        shared.blocks.give(2)
    with pytest.raises(ValueError, match="slab 3 is here"):
        shared.blocks.take(3)


def test_one_sequence_has_blocks_of_both_groups_in_any_case() -> None:
    slabs = Slabs.of(1000, 26_000, 5_000, 65, 577)
    assert (slabs.blocks, slabs.windows, slabs.kept, slabs.lent) == (26, 5, 14, 102)
    assert (slabs.for_one, slabs.windows_beside) == (884 * 26, 116 * 5 - 1)
    assert Slabs.of(40, 40, 40, 3, 577).lent == 10, "a quarter for prompts"
    assert Slabs.of(4, 40, 40, 3, 3).for_one == 0
    with pytest.raises(ValueError, match="do not fill 7 slabs"):
        Slabs.of(7, 26, 14, 3, 5)


class Machine(RuleBasedStateMachine):
    """Sequences that have blocks of both pools, some of which can be found when they are gone."""

    @initialize(slabs=st.integers(4, 12), kept=st.integers(1, 3), each=st.tuples(st.integers(1, 6), st.integers(1, 3)))
    def start(self, slabs: int, kept: int, each: tuple[int, int]) -> None:
        self.shared = SharedMemory(slabs, kept, blocks_each=each[0], windows_each=each[1])
        self.held: list[tuple[list[int], list[int]]] = []
        self.named = self.step = 0

    @rule(blocks=st.integers(0, 30), windows=st.integers(0, 20))
    def enter(self, blocks: int, windows: int) -> None:
        pools = self.shared.blocks, self.shared.windows
        have = [pool.available for pool in pools]
        surplus = self.shared.even_out(have[0] - blocks, have[1] - windows)
        assert surplus == (pools[0].available - blocks, pools[1].available - windows)
        if min(surplus) >= 0:
            self.held.append((pools[0].allocate(blocks), pools[1].allocate(windows)))
        else:
            assert [pool.available for pool in pools] == have or min(have[0] - blocks, have[1] - windows) < 0

    @precondition(lambda self: self.held)
    @rule(data=st.data(), found=st.booleans(), copied=st.booleans())
    def end(self, data: st.DataObject, found: bool, copied: bool) -> None:
        tables = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        for pool, table in zip((self.shared.blocks, self.shared.windows), tables, strict=True):
            if copied:
                pool.guard(table, self.step)
            for block in table if found else ():
                self.named += 1
                pool.publish(block, str(self.named).encode())
            pool.release(reversed(table))

    @rule()
    def settle(self) -> None:
        for pool in (self.shared.blocks, self.shared.windows):
            pool.settle(self.step)
        self.step += 1

    @invariant()
    def accounts_are_right(self) -> None:
        if hasattr(self, "shared"):
            self.shared.check_integrity()
            for place, pool in enumerate((self.shared.blocks, self.shared.windows)):
                pool.check_integrity([tables[place] for tables in self.held])
                elsewhere = set(pool.blocks_elsewhere)
                assert not any(block in elsewhere for tables in self.held for block in tables[place])


def test_any_order_keeps_accounts() -> None:
    count = examples(300, quick=30)
    run_state_machine_as_test(Machine, settings=settings(max_examples=count, stateful_step_count=40, deadline=None))
