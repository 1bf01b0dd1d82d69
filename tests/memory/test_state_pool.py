"""Slots of states: which may be written, which snapshots are found, and which are evicted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.memory.prefix_hits import longest_hit
from octavo_worker.memory.state_pool import StatePool, Tail


def snapshots(pool: StatePool, *names: str) -> dict[str, int]:
    """Cached snapshots, the first the oldest."""
    slots = {}
    for name in names:
        (slot,) = pool.allocate(1)
        assert pool.publish(slot, name.encode())
        pool.release((slot,))
        slots[name] = slot
        pool.check_integrity()
    return slots


def hit(pool: StatePool, slot: int, times: int = 1) -> None:
    for _ in range(times):
        pool.acquire((slot,))
        pool.hit(slot)
        pool.release((slot,))
        pool.check_integrity()


def evicted(pool: StatePool) -> list[bytes]:
    """The snapshots in the order in which they go."""
    order = []
    for slot in pool.free_order():
        digest = pool.hash_of(slot)
        if digest is not None:
            order.append(digest)
    return order


def test_a_slot_is_written_by_its_only_owner() -> None:
    pool = StatePool(9)
    (slot,) = pool.allocate(1)
    assert pool.is_own(slot)
    pool.acquire((slot,))
    assert not pool.is_own(slot)
    pool.release((slot,))
    pool.guard((slot,), 3)
    assert not pool.is_own(slot)
    pool.settle(3)
    assert pool.is_own(slot)
    pool.publish(slot, b"a")
    assert not pool.is_own(slot)


def test_slot_0_is_nobodys() -> None:
    pool = StatePool(4)
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    assert not pool.is_own(0)


def test_the_least_recently_used_snapshot_goes_first() -> None:
    pool = StatePool(9)
    slots = snapshots(pool, "a", "b", "c")
    hit(pool, slots["a"])
    assert evicted(pool) == [b"b", b"c", b"a"]


def test_a_snapshot_that_was_hit_twice_goes_last() -> None:
    pool = StatePool(9)
    slots = snapshots(pool, "junction", "a", "b")
    hit(pool, slots["junction"], 2)
    slots |= snapshots(pool, "c")
    hit(pool, slots["a"])
    assert evicted(pool) == [b"b", b"c", b"a", b"junction"]
    pool.allocate(7)
    assert [pool.find(name) is not None for name in (b"a", b"b", b"c", b"junction")] == [False, False, False, True]


def test_junctions_are_half_of_the_pool_at_most() -> None:
    pool = StatePool(7)
    slots = snapshots(pool, *"abcdef")
    for name in "abcd":
        hit(pool, slots[name], 2)
    assert evicted(pool) == [b"e", b"f", b"a", b"b", b"c", b"d"]
    hit(pool, slots["e"])
    assert evicted(pool) == [b"f", b"a", b"e", b"b", b"c", b"d"]


def test_an_evicted_junction_is_forgotten_as_such() -> None:
    pool = StatePool(3)
    slots = snapshots(pool, "a")
    hit(pool, slots["a"], 5)
    held = pool.allocate(2)
    pool.release(held)
    slots = snapshots(pool, "b", "c")
    pool.check_integrity()
    assert evicted(pool) == [b"b", b"c"]


def test_a_junction_in_use_is_unpublished_like_any_other() -> None:
    pool = StatePool(5)
    slots = snapshots(pool, "a", "b")
    hit(pool, slots["a"], 2)
    pool.unpublish(slots["a"])
    pool.check_integrity()
    assert pool.find(b"a") is None
    assert evicted(pool) == [b"b"]


def test_tails_are_found_behind_their_block_until_they_are_evicted() -> None:
    pool = StatePool(4)
    for name, words in ((b"x", b"1111"), (b"y", b"11112222")):
        (slot,) = pool.allocate(1)
        assert pool.publish_tail(slot, name, Tail(b"block", words))
        pool.release((slot,))
    assert pool.tails(b"block") == {b"1111": b"x", b"11112222": b"y"}
    pool.check_integrity()
    held = pool.allocate(2)
    assert pool.tails(b"block") == {b"11112222": b"y"}
    held += pool.allocate(1)
    assert pool.tails(b"block") == {}
    pool.release(held)
    pool.check_integrity()


def test_of_two_equal_states_the_first_one_is_found() -> None:
    pool = StatePool(4)
    first, second = pool.allocate(2)
    assert pool.publish_tail(first, b"x", Tail(b"block", b"1111"))
    assert not pool.publish_tail(second, b"x", Tail(b"block", b"1111"))
    assert pool.find(b"x") == first
    pool.check_integrity()


def test_accounts_that_are_wrong_are_noticed() -> None:
    pool = StatePool(6)
    slots = snapshots(pool, "a", "b")
    pool._hits[slots["a"]] = 2
    with pytest.raises(AssertionError, match="junctions"):
        pool.check_integrity()


@given(st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=4), st.integers(0, 30))
def test_a_hit_is_the_longest_prefix_that_all_pools_hold(pools: list[set[int]], most: int) -> None:
    def reach(pool: set[int], end: int) -> int:
        return max((held for held in pool if held <= end), default=0)

    found = longest_hit([lambda end, pool=pool: reach(pool, end) for pool in pools], most)
    assert found == max((end for end in set.intersection(*pools) if end <= most), default=0)
