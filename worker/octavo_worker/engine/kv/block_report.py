"""The engine's answer to the question which request has which block: arrays, so that 80,000 blocks cost half a
millisecond."""

from __future__ import annotations

import numpy as np

from octavo_worker.contract.messages import BlockReport
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool

FREE, CACHED, QUARANTINED = 0, 1, 2
FIRST_OWNER = 16
PINNED, SHARED = 0x4000, 0x8000
_MOST_OWNERS = PINNED - FIRST_OWNER


def block_report(scheduler: Scheduler) -> BlockReport:
    """The state between two steps. Of the requests that share a block the first one has it."""
    kv = scheduler.kv
    pools = [kv.pool] if kv.host is None else [kv.pool, kv.host.pool]
    end = max(pool.first + pool.num_blocks for pool in pools)
    codes = np.zeros(end, np.uint16)
    for pool in pools:
        contents = np.frombuffer(pool.contents, np.uint8)
        codes[_range(pool)] = contents[_range(pool)]  # CACHED where there is one
        codes[pool.quarantine] = QUARANTINED
    sequences = scheduler.holders()
    owners: dict[str, int] = {}
    places = [owners.setdefault(sequence.request.id, len(owners)) for sequence in sequences]
    tables = [sequence.table.blocks for sequence in sequences]
    held = np.frombuffer(b"".join(reversed(tables)), np.int32)  # of several writes to an entry the last one stays
    numbers = np.array([min(place, _MOST_OWNERS - 1) + FIRST_OWNER for place in reversed(places)], np.uint16)
    codes[held] = np.repeat(numbers, [len(table) for table in reversed(tables)])
    if any(pool.shared for pool in pools):
        codes[np.bincount(held, minlength=end) > 1] |= SHARED
    codes[kv.pins.blocks] |= PINNED
    codes[NULL_BLOCK] = FREE
    shown = np.concatenate([codes[_range(pool)] for pool in pools])
    begins = np.concatenate([[0], np.flatnonzero(shown[1:] != shown[:-1]) + 1])
    lengths = np.diff(begins, append=len(shown)).astype(np.uint32)
    host = 0 if kv.host is None else kv.host.pool.total
    return BlockReport(kv.pool.total, host, list(owners), shown[begins].tobytes(), lengths.tobytes())


def _range(pool: BlockPool) -> slice:
    """The blocks that can be handed out."""
    return slice(pool.first + 1, pool.first + pool.num_blocks)
