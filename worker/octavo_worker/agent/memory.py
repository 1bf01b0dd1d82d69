"""A worker's memory on request: the engine's report in the words of the protocol."""

from __future__ import annotations

import asyncio
import time
from typing import Generic, TypeVar

from octavo.terms.messages import WorkerMap
from octavo.terms.stats import EngineStats
from octavo.terms.workers import CELL_STATES, WorkerMemory
from octavo_worker.agent.child import EngineProcess
from octavo_worker.contract.messages import BlockReport, DescribeBlocks, DescribeMemory, MemoryReport, Ready

MAP_CELLS = 512
PATIENCE_S = 2.0  # a step may take long; a client waits for three seconds


Report = TypeVar("Report", MemoryReport, BlockReport)


class Reports(Generic[Report]):
    """One kind of questions to the engine: each of its answers serves all that are under way."""

    def __init__(self, question: DescribeMemory | DescribeBlocks) -> None:
        self._question = question
        self._waiting: set[asyncio.Future[Report]] = set()

    async def ask(self, engine: EngineProcess) -> Report | None:
        """None if the engine does not answer in time."""
        report: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._waiting.add(report)
        try:
            engine.send(self._question)
            async with asyncio.timeout(PATIENCE_S):
                return await report
        except TimeoutError:
            return None
        finally:
            self._waiting.discard(report)

    def take(self, report: Report) -> None:
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


def worker_map(worker_id: str, report: BlockReport, limits: Ready) -> WorkerMap:
    """Its blocks as they are published."""
    owners = tuple(owner.partition("#")[0] for owner in report.owners)  # without the claim: see RunningJob
    return WorkerMap(
        worker_id, time.time(), limits.block_size, report.device, report.host, owners, report.codes, report.lengths
    )


def _blocks(stats: EngineStats) -> dict[str, int]:
    by_state = {state: count for state, count in stats.blocks().items() if state in CELL_STATES.values()}
    return {"total": stats.total_blocks, **by_state}
