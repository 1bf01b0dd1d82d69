"""A worker's memory for those who ask: the engine's report in the words of the protocol."""

from __future__ import annotations

import asyncio
import time

from octavo.models import WorkerMemory
from octavo_worker.agent.child import EngineProcess
from octavo_worker.messages import DescribeMemory, EngineStats, MemoryReport, Ready

MAP_CELLS = 512
PATIENCE_S = 2.0  # a step may take long; who asks a worker waits for three seconds

_REASONS = (
    *("swapped_out", "recompute_cheaper", "recompute_cached"),
    *("recompute_host_full", "recompute_no_swap", "recompute_no_choice"),
)


class Reports:
    """Questions to the engine that are under way: each of its answers serves all of them."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[MemoryReport]] = set()

    async def ask(self, engine: EngineProcess) -> MemoryReport | None:
        """None if the engine does not answer in time."""
        report: asyncio.Future[MemoryReport] = asyncio.get_running_loop().create_future()
        self._waiting.add(report)
        try:
            engine.send(DescribeMemory(MAP_CELLS))
            async with asyncio.timeout(PATIENCE_S):
                return await report
        except TimeoutError:
            return None
        finally:
            self._waiting.discard(report)

    def take(self, report: MemoryReport) -> None:
        """The engine has answered."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(report)


def worker_memory(worker_id: str, model: str, report: MemoryReport, limits: Ready) -> WorkerMemory:
    """What goes out."""
    stats = report.stats
    return WorkerMemory(
        worker=worker_id,
        model=model,
        at=time.time(),
        block_size=limits.block_size,
        kv_dtype=limits.kv_dtype,
        blocks=_blocks(stats),
        host={
            "total": stats.host_blocks,
            "used": stats.host_blocks - stats.host_free_blocks,
            "cold": stats.cold_blocks,
            "free": stats.host_free_blocks,
        },
        sharing=tuple(report.sharing),
        cells=report.states,
        cell_references=tuple(report.references),
        host_cells=report.host_states,
        tokens={
            "prompt": stats.prompt_tokens,
            "cached": stats.cached_tokens,
            "recomputed": stats.recomputed_tokens,
            "restored": stats.restored_tokens,
        },
        preemptions={reason: getattr(stats, reason) for reason in _REASONS},
    )


def _blocks(stats: EngineStats) -> dict[str, int]:
    counts = {
        "free": stats.free_blocks,
        "used": stats.used_blocks,
        "cached": stats.cached_blocks,
        "quarantined": stats.quarantined_blocks,
    }
    return {
        "total": sum(counts.values()),
        **counts,
        "shared": stats.shared_blocks,
        "pinned": stats.pinned_blocks,
    }
