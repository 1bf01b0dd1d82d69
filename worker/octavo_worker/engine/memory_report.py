"""What the engine says about its memory when somebody asks."""

from __future__ import annotations

from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.memory.block_map import block_map
from octavo_worker.messages import MemoryReport


def memory_report(scheduler: Scheduler, cells: int) -> MemoryReport:
    """The state between two steps, in maps of at most `cells` cells."""
    residency = scheduler.residency
    blocks = block_map(residency.pool, residency.pins.blocks, cells)
    host = "" if residency.host is None else block_map(residency.host.pool, (), cells).states
    return MemoryReport(scheduler.stats(), blocks.states, blocks.references, blocks.sharing, host)
