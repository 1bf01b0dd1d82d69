"""Block pool, prefix cache and tables in the small: the behaviours of vLLM's test_prefix_caching as an oracle."""

from __future__ import annotations

import subprocess
import sys
from array import array
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.memory import prefix_cache
from octavo_worker.memory.block_pool import BlockPool, OutOfBlocks
from octavo_worker.memory.block_table import BlockTable
from octavo_worker.memory.prefix_cache import PrefixCache

SIZE = 16


def chain(cache: PrefixCache, tokens: list[int], salt: bytes = b"") -> list[bytes]:
    digests = [cache.root(salt)]
    cache.extend_digests(digests, tokens)
    return digests


def fill(pool: BlockPool, cache: PrefixCache, tokens: list[int], salt: bytes = b"") -> BlockTable:
    """Prefill `tokens` as the scheduler would: match, allocate, publish the full blocks."""
    table, digests = BlockTable(pool, SIZE), chain(cache, tokens, salt)
    hits = cache.match(digests, len(tokens))
    table.adopt(hits)
    table.reserve(len(tokens))
    for slot in range(len(hits), len(tokens) // SIZE):
        pool.publish(table.blocks[slot], digests[slot + 1])
    return table


def hashed(tokens: list[int], salt: bytes) -> list[bytes]:
    """The same chain with nothing remembered."""
    digests = [PrefixCache.root(salt)]
    for at in range(0, len(tokens) - SIZE + 1, SIZE):
        block = array("I", tokens[at : at + SIZE]).tobytes()
        digests.append(blake2b(digests[-1] + block, digest_size=16).digest())
    return digests


@given(
    beginnings=st.lists(st.sampled_from([0, 5, 16, 250, 256, 257, 512, 700, 1024]), min_size=1, max_size=6),
    end=st.integers(0, 600),
    cut=st.integers(0, 40),
)
def test_what_is_remembered_of_other_prompts_changes_no_digest(beginnings: list[int], end: int, cut: int):
    cache = PrefixCache(BlockPool(2), SIZE)
    for number, shared in enumerate(beginnings):
        tokens = [*range(shared), *(10_000 * number + i for i in range(end))]
        for salt in (b"one", b"two"):
            at_once = chain(cache, tokens, salt)
            in_parts = chain(cache, tokens[: cut * SIZE], salt)
            cache.extend_digests(in_parts, tokens[(len(in_parts) - 1) * SIZE :])
            assert at_once == in_parts == hashed(tokens, salt)


def test_numbers_of_the_vllm_oracle():
    pool = BlockPool(11)
    cache = PrefixCache(pool, SIZE)
    common = list(range(48))
    first = fill(pool, cache, common + [90] * 7)
    assert first.blocks.tolist() == [1, 2, 3, 4]
    assert [pool.hash_of(block) is not None for block in first.blocks] == [True, True, True, False]

    second = fill(pool, cache, common + [91] * 5)
    assert second.blocks.tolist() == [1, 2, 3, 5]
    assert [pool.refs[block] for block in (1, 2, 3, 4, 5)] == [2, 2, 2, 1, 1]

    first.free()
    second.free()
    assert pool.free_order() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert (pool.free, pool.cached, pool.used) == (7, 3, 0)

    revived = fill(pool, cache, common + [92] * 3)
    assert revived.blocks.tolist() == [1, 2, 3, 5]
    revived.free()
    assert pool.free_order() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]

    miss = fill(pool, cache, [500 + i for i in range(160)])  # everything goes, in exactly that order
    assert miss.blocks.tolist() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert pool.available == 0
    pool.check_integrity([miss.blocks])


def test_evicting_the_first_block_is_a_total_miss_and_a_tail_only_shortens_the_hit():
    pool = BlockPool(11)
    cache = PrefixCache(pool, SIZE)
    tokens = list(range(64))
    fill(pool, cache, tokens).free()
    taken = pool.allocate(7)  # six unused and one cached block: the tail of the prefix
    assert len(cache.match(chain(cache, tokens), 65)) == 3
    taken += pool.allocate(3)
    assert not cache.match(chain(cache, tokens), 65)
    pool.release(taken)
    pool.check_integrity([])


@pytest.mark.parametrize(("tokens", "hit"), [(1, 0), (16, 0), (17, 1), (32, 1), (33, 2), (48, 2), (49, 3)])
def test_at_least_the_last_token_is_computed(tokens, hit):
    pool = BlockPool(11)
    cache = PrefixCache(pool, SIZE)
    fill(pool, cache, list(range(64)))
    assert len(cache.match(chain(cache, list(range(tokens))), tokens)) == hit


def test_salt_isolates_the_whole_chain():
    pool = BlockPool(11)
    cache = PrefixCache(pool, SIZE)
    tokens = list(range(48))
    fill(pool, cache, tokens, b"one")
    assert not cache.match(chain(cache, tokens, b"two"), 49)
    assert set(chain(cache, tokens, b"one")).isdisjoint(chain(cache, tokens, b"two"))


def test_equal_block_after_another_prefix_is_another_block():
    cache = PrefixCache(BlockPool(11), SIZE)
    same = [7] * SIZE
    assert chain(cache, [1] * SIZE + same)[2] != chain(cache, [2] * SIZE + same)[2]
    assert chain(cache, same * 2)[1] != chain(cache, same * 2)[2]


def test_first_publisher_of_equal_content_is_found_and_the_other_stays_private():
    pool = BlockPool(5)
    one, two = pool.allocate(2)
    assert pool.publish(one, b"content")
    assert not pool.publish(two, b"content")
    pool.release([two, one])
    assert pool.find(b"content") == one
    assert (pool.free, pool.cached) == (3, 1)


def test_unpublished_block_is_not_found_whether_used_or_cached():
    pool = BlockPool(4)
    used, cached = pool.allocate(2)
    pool.publish(used, b"used")
    pool.publish(cached, b"cached")
    pool.release([cached])
    pool.unpublish(used)
    pool.unpublish(cached)
    pool.unpublish(cached)
    assert pool.find(b"used") is None
    assert pool.find(b"cached") is None
    assert pool.free_order()[0] == cached
    assert pool.cached == 0
    pool.check_integrity([[used]])


def test_failed_allocation_takes_nothing():
    pool = BlockPool(4)
    table = BlockTable(pool, SIZE)
    table.reserve(17)
    before = pool.free_order(), table.blocks[:]
    with pytest.raises(OutOfBlocks):
        table.reserve(65)
    assert (pool.free_order(), table.blocks) == before


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    pool.release([block])
    with pytest.raises(ValueError, match="released more often"):
        pool.release([block])
    with pytest.raises(ValueError, match="released more often"):
        pool.release([0])
    with pytest.raises(ValueError, match="is free"):
        pool.acquire([block])
    with pytest.raises(ValueError, match="not in use"):
        pool.publish(block, b"content")
    with pytest.raises(ValueError, match="not in use"):
        pool.guard([block], 1)


def test_fork_shares_and_copies_the_tail_at_the_first_write_only():
    pool = BlockPool(8)
    parent = BlockTable(pool, SIZE)
    parent.reserve(20)
    children = [parent.fork() for _ in range(2)]
    assert pool.used == 2
    assert all(table.is_shared(20) for table in (parent, *children))
    assert parent.unshare(20) == (2, 3)
    assert children[0].unshare(20) == (2, 4)
    assert not children[1].is_shared(20)  # the last owner writes in place
    assert [table.blocks.tolist() for table in (parent, *children)] == [[1, 3], [1, 4], [1, 2]]
    for table in (parent, *children):
        table.free()
    assert pool.used == 0


def test_what_was_planned_with_a_table_sees_none_of_its_changes_but_growth():
    pool = BlockPool(20)
    table = BlockTable(pool, SIZE)
    table.reserve(5 * SIZE)
    planned = table.blocks
    before = list(planned)
    table.reserve(6 * SIZE)
    assert list(planned) == [*before, table.blocks[5]], "it grows where it is"
    sibling = table.fork()
    changes = [
        lambda: table.unshare(5 * SIZE),
        lambda: table.give_up(1),
        lambda: table.replace(array("i", [77, 78])),
        lambda: table.shrink(4 * SIZE + 1),
        table.free,
    ]
    for change in changes:
        planned, before = table.blocks, list(table.blocks)
        change()
        assert list(planned) == before != list(table.blocks)
        pool.check_integrity([table.held, sibling.held])


def test_ids_may_begin_behind_those_of_another_pool():
    pool = BlockPool(5, first=100)
    blocks = pool.allocate(4)
    assert sorted(blocks) == [101, 102, 103, 104]
    pool.publish(103, b"x" * 16)
    pool.release(blocks)
    pool.check_integrity([])
    assert (pool.total, pool.available, pool.cached) == (4, 4, 1)
    assert pool.free_order()[-1] == 103
    with pytest.raises(OutOfBlocks):
        pool.allocate(5)


@pytest.mark.parametrize("corruption", ["refs", "link", "hash", "count"])
def test_integrity_check_finds_corruption(corruption):
    pool = BlockPool(8)
    cache = PrefixCache(pool, SIZE)
    fill(pool, cache, list(range(40))).free()
    pool.check_integrity([])
    if corruption == "refs":
        pool.refs[3] = 1
    elif corruption == "link":
        pool._prev[pool._next[0]] = 5
    elif corruption == "hash":
        pool._by_hash[b"lost"] = 2
    else:
        pool._cached += 1
    with pytest.raises(AssertionError):
        pool.check_integrity([])


def test_integrity_check_finds_references_that_no_table_holds():
    pool = BlockPool(8)
    blocks = pool.allocate(2)
    pool.check_integrity([blocks])
    with pytest.raises(AssertionError, match="1 references, tables hold 0"):
        pool.check_integrity([blocks[:1]])


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        ("octavo_worker.memory.block_table, octavo_worker.memory.prefix_cache", {"torch", "redis", "numpy"}),
        ("octavo_worker.engine.scheduler", {"torch", "redis"}),
    ],
)
def test_scheduling_needs_neither_model_nor_queue(modules: str, without: set[str]):
    code = f"import sys, {modules}\nassert not {without} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_the_latest_runs_are_remembered(monkeypatch):
    monkeypatch.setattr(prefix_cache, "RECENT_RUNS", 2)
    cache = PrefixCache(BlockPool(4), 4)
    for start in range(5):
        cache.extend_digests([cache.root(b"")], range(start, start + 4 * prefix_cache.RUN_BLOCKS))
        cache.extend_digests([cache.root(bytes([start]))], range(4 * prefix_cache.RUN_BLOCKS))
    assert len(cache._recent) == 2
