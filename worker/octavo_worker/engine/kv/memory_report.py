"""The engine's answer to a question about its memory."""

from __future__ import annotations

from octavo_worker.contract.messages import MemoryReport
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.memory.block_map import block_map


def memory_report(scheduler: Scheduler, cells: int) -> MemoryReport:
    """The state between two steps, in maps of at most `cells` cells."""
    kv = scheduler.kv
    blocks = block_map(kv.pool, kv.pins.blocks, cells)
    host = "" if kv.host is None else block_map(kv.host.pool, (), cells).states
    report = MemoryReport(scheduler.stats(), blocks.states, blocks.references, blocks.sharing, host)
    if kv.windows is not None:
        windows = block_map(kv.windows.pool, kv.windows.pins.blocks, cells)
        report.window_states, report.window_references = windows.states, windows.references
    if kv.states is not None:
        slots = block_map(kv.states.pool, kv.states.snapshots.pins.blocks, cells)
        report.slot_states, report.slot_references = slots.states, slots.references
    return report
