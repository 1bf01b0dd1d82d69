"""Ranks as threads of the test, over memory that they share as processes do."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from octavo_worker.model.parallel.cpu_group import CpuGroup
from octavo_worker.model.parallel.memory import RankMemory
from octavo_worker.model.parallel.shards import Rank

T = TypeVar("T")


def on_ranks(count: int, work: Callable[[CpuGroup], T], slot_bytes: int = 1 << 12) -> list[T]:
    """What `work` gives on each of `count` ranks. Rank 0 is this thread: what its process does is what others see."""
    descriptor = os.memfd_create("ranks")
    try:
        groups = [CpuGroup(RankMemory(descriptor, rank, slot_bytes), rank) for rank in ranks_of(count)]
    finally:
        os.close(descriptor)
    with ThreadPoolExecutor(count - 1) as pool:
        others = [pool.submit(work, group) for group in groups[1:]]
        return [work(groups[0]), *(other.result() for other in others)]


def ranks_of(count: int) -> list[Rank]:
    return [Rank(index, count) for index in range(count)]
