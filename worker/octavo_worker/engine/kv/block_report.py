"""The engine's answer to the question which request has which block: arrays, so that 80,000 blocks cost half a
millisecond."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo_worker.contract.messages import BlockReport
from octavo_worker.engine.kv.block_group import BlockGroup
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.sequence import Sequence as Member
from octavo_worker.engine.states.states import States
from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool

FREE, CACHED, QUARANTINED, ELSEWHERE = 0, 1, 2, 3
FIRST_OWNER = 16
PINNED, SHARED = 0x4000, 0x8000
_MOST_OWNERS = PINNED - FIRST_OWNER


@dataclass(frozen=True, slots=True)
class _Region:
    """A kind of memory: its pool, the `host`'s, what each sequence has there, and what pins keep. Of what is `leaving`
    no sequence has anything any more, but a step in flight."""

    pool: BlockPool
    host: BlockPool | None
    tables: list[array[int]]
    pinned: list[int]
    leaving: list[int]

    @property
    def pools(self) -> list[BlockPool]:
        return [self.pool] if self.host is None else [self.pool, self.host]

    @property
    def size(self) -> tuple[int, int]:
        """Blocks of the device and of the host."""
        return self.pool.num_blocks - 1, 0 if self.host is None else self.host.total

    def codes(self, numbers: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
        """The code of each block, with the number of each sequence: the last sequence's first."""
        end = max(pool.first + pool.num_blocks for pool in self.pools)
        codes = np.zeros(end, np.uint16)
        for pool in self.pools:
            contents = np.frombuffer(pool.contents, np.uint8)
            codes[_range(pool)] = contents[_range(pool)]  # CACHED where there is one
            codes[pool.quarantine] = QUARANTINED
            codes[[*pool.blocks_elsewhere]] = ELSEWHERE
        codes[self.leaving] = QUARANTINED
        held = np.frombuffer(b"".join(reversed(self.tables)), np.int32)  # of several writes to an entry the last stays
        codes[held] = np.repeat(numbers, [len(table) for table in reversed(self.tables)])
        if any(pool.shared for pool in self.pools):
            codes[np.bincount(held, minlength=end) > 1] |= SHARED
        codes[self.pinned] |= PINNED
        codes[NULL_BLOCK] = FREE
        return np.concatenate([codes[_range(pool)] for pool in self.pools])


def block_report(scheduler: Scheduler) -> BlockReport:
    """The state between two steps. Of the requests that share a block the first one has it."""
    kv, sequences = scheduler.kv, scheduler.holders()
    owners: dict[str, int] = {}
    places = [owners.setdefault(sequence.request.id, len(owners)) for sequence in sequences]
    numbers = np.array([min(place, _MOST_OWNERS - 1) + FIRST_OWNER for place in reversed(places)], np.uint16)
    blocks, *beside = _regions(kv.groups, kv.states, sequences)
    shown = np.concatenate([region.codes(numbers) for region in (blocks, *beside)])
    begins = np.concatenate([[0], np.flatnonzero(shown[1:] != shown[:-1]) + 1])
    lengths = np.diff(begins, append=len(shown)).astype(np.uint32)
    sizes = iter(region.size for region in beside)
    return BlockReport(
        *blocks.size,
        list(owners),
        shown[begins].tobytes(),
        lengths.tobytes(),
        windows=None if kv.windows is None else next(sizes),
        states=None if kv.states is None else next(sizes),
    )


def _regions(groups: Sequence[BlockGroup], states: States | None, sequences: Sequence[Member]) -> Iterator[_Region]:
    """The memory of each group of blocks, then the slots."""
    pending = [] if states is None else states.snapshots.pending
    for place, group in enumerate(groups):
        host = None if group.host is None else group.host.pool
        tables = [group.table_of(sequence).blocks for sequence in sequences]
        leaving = [snapshot.blocks[place] for snapshot in pending if snapshot.blocks]
        yield _Region(group.pool, host, tables, group.pins.blocks, leaving)
    if states is not None:
        slots = [array("i", () if each.live is None else each.live.slots) for each in sequences]
        leaving = [snapshot.slot for snapshot in pending]
        yield _Region(states.pool, states.host, slots, states.snapshots.pins.blocks, leaving)


def _range(pool: BlockPool) -> slice:
    """The blocks that can be handed out."""
    return slice(pool.first + 1, pool.first + pool.num_blocks)
