"""A worker's memory on request: the engine's report in the words of the protocol."""

from __future__ import annotations

import asyncio
import time

from octavo.terms.stats import EngineStats
from octavo.terms.workers import CELL_STATES, WorkerMemory
from octavo_worker.agent.child import EngineProcess
from octavo_worker.contract.messages import DescribeMemory, MemoryReport, Ready

MAP_CELLS = 512
PATIENCE_S = 2.0  # a step may take long; a client waits for three seconds


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
    """The worker's memory as it is published."""
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
        preemptions=stats.reasons(),
    )


def _blocks(stats: EngineStats) -> dict[str, int]:
    by_state = {state: count for state, count in stats.blocks().items() if state in CELL_STATES.values()}
    return {"total": stats.total_blocks, **by_state}
