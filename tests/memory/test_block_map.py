"""The map of a pool shows what the pool's own accounts say, cell by cell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.terms.workers import CELL_STATES
from octavo_worker.memory.block_map import CellState, block_map
from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.slabs import SharedMemory


def example_pool() -> tuple[BlockPool, list[int]]:
    """Eight blocks: used, shared by three, cached, pinned, quarantined, and three that are free."""
    pool = BlockPool(9)
    blocks = pool.allocate(5)
    used, shared, cached, pinned, leaving = blocks
    pool.acquire([shared, shared])
    for block in (cached, pinned):
        pool.publish(block, b"content%d" % block)
    pool.guard([leaving], 1)
    pool.release([leaving, cached])
    assert (pool.used, pool.cached, pool.quarantined, pool.free) == (3, 1, 1, 3)
    return pool, [used, shared, cached, pinned, leaving]


def test_one_cell_a_block():
    pool, blocks = example_pool()
    shown = block_map(pool, [blocks[3]], 100)
    assert {block: shown.states[block - 1] for block in blocks} == dict(zip(blocks, "uscpq", strict=True))
    assert shown.states.count(".") == 3
    assert shown.references[blocks[1] - 1] == 3
    assert shown.sharing == [(3, 1)]


def test_a_cell_of_many_shows_the_most_telling_of_them():
    pool, blocks = example_pool()
    assert block_map(pool, [blocks[3]], 1).states == "p"
    assert block_map(pool, [], 1).states == "s"
    assert block_map(pool, [], 1).references == [3]


def test_blocks_elsewhere_are_blank_where_a_cell_has_no_others():
    shared = SharedMemory(4, 1, blocks_each=4, windows_each=2)
    assert block_map(shared.blocks, (), 15).states == "---............"
    assert block_map(shared.windows, (), 7).states == ".------"
    assert block_map(shared.blocks, (), 3).states == "..."
    assert block_map(shared.blocks, (), 5).states == "-...."


def test_the_legend_that_clients_know_is_complete():
    assert {state.value: state.name.lower() for state in CellState} == CELL_STATES


@given(st.integers(2, 200), st.sampled_from([0, 70]), st.integers(1, 60), st.data())
def test_every_block_is_in_exactly_one_cell(num_blocks: int, first: int, cells: int, data: st.DataObject):
    pool = BlockPool(num_blocks, first)
    taken = pool.allocate(pool.total)
    kept = data.draw(st.sets(st.sampled_from(taken)))
    pool.release([block for block in taken if block not in kept])
    shown = block_map(pool, (), cells)
    assert len(shown.states) == min(cells, pool.total)
    one_each = block_map(pool, (), pool.total)
    assert one_each.states == "".join("u" if block in kept else "." for block in range(first + 1, first + num_blocks))
    marked = block_map(pool, kept, cells).states
    assert [state == "p" for state in marked] == [state == "u" for state in shown.states]
