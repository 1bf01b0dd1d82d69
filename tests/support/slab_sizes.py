"""Sizes of memory that two groups of blocks share."""

from __future__ import annotations

from octavo_worker.contract.capacity import Capacity


def shared_memory(for_one: int, window: int, block_size: int, each: tuple[int, int]) -> tuple[int, dict[str, int]]:
    """The blocks of a fake runner, null block included, and what else it is to be told: one sequence has `for_one`
    blocks of the first group in any case. A slab has so many blocks of `each` group."""
    live = Capacity(1, block_size, window=window).sliding_blocks(1)
    number = -(-for_one // each[0]) + live - (-(live + 1) // each[1])
    return number * each[0], {"window_blocks": number * each[1], "layer_window": window, "slabs": number}
