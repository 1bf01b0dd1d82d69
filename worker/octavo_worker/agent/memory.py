"""A worker's memory on request: the engine's report in the words of the protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from octavo.queue import wire
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


class MemoryDesk:
    """Answers about a worker's memory. `serving` gives the engine and its limits, None while none has loaded."""

    def __init__(self, worker_id: str, model: str, serving: Callable[[], tuple[EngineProcess, Ready] | None]) -> None:
        self._worker_id = worker_id
        self._model = model
        self._serving = serving
        self._reports = Reports[MemoryReport](DescribeMemory(MAP_CELLS))
        self._block_reports = Reports[BlockReport](DescribeBlocks())

    async def describe(self) -> bytes | None:
        """The memory at a glance. None if no engine answers."""
        if (serving := self._serving()) is None or (report := await self._reports.ask(serving[0])) is None:
            return None
        return wire.encode_memory(worker_memory(self._worker_id, self._model, report, serving[1]))

    async def map_blocks(self) -> bytes | None:
        """Every block with its owner. None if no engine answers."""
        if (serving := self._serving()) is None or (report := await self._block_reports.ask(serving[0])) is None:
            return None
        return wire.encode_map(worker_map(self._worker_id, report, serving[1]))

    def take(self, report: MemoryReport | BlockReport) -> None:
        """The engine has answered."""
        if isinstance(report, MemoryReport):
            self._reports.take(report)
        else:
            self._block_reports.take(report)


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
        states=_states(stats),
        state_cells=report.slot_states,
        state_references=tuple(report.slot_references),
        windows=_windows(stats),
        window_cells=report.window_states,
        window_references=tuple(report.window_references),
    )


def worker_map(worker_id: str, report: BlockReport, limits: Ready) -> WorkerMap:
    """Its blocks as they are published."""
    owners = tuple(owner.partition("#")[0] for owner in report.owners)  # without the claim: see RunningJob
    return WorkerMap(
        worker=worker_id,
        at=time.time(),
        block_size=limits.block_size,
        device=report.device,
        host=report.host,
        owners=owners,
        codes=report.codes,
        lengths=report.lengths,
        windows=report.windows,
        states=report.states,
    )


def _states(stats: EngineStats) -> dict[str, int]:
    states = stats.states()
    return {"total": stats.total_states, "stateless_tokens": stats.stateless_tokens, **states} if states else {}


def _windows(stats: EngineStats) -> dict[str, int]:
    windows = stats.windows()
    return {"total": stats.total_windows, "windowless_tokens": stats.windowless_tokens, **windows} if windows else {}


def _blocks(stats: EngineStats) -> dict[str, int]:
    by_state = {state: count for state, count in stats.blocks().items() if state in CELL_STATES.values()}
    return {"total": stats.total_blocks, **by_state}
