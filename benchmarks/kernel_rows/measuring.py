"""How a kernel is timed, and beside what."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import ceil
from types import ModuleType

import torch
from torch import Tensor

READ, COPY, MATMUL = 4.55e12, 4.25e12, 775e12  # bytes/s, bytes/s, FLOP/s
LINK = 55e9  # bytes/s between host and device, each way
COLD_BYTES = 4 * 60e6
WARM_SECONDS = 0.05
REPLAY_SECONDS = 1e-3  # by a first replay, which takes longer than those that count


@contextmanager
def changed(module: ModuleType, **names: object) -> Iterator[None]:
    """Decisions of a module, replaced while this lasts."""
    before = {name: getattr(module, name) for name in names}
    try:
        for name, value in names.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@dataclass
class Row:
    operation: str
    shape: str
    microseconds: float
    floor_microseconds: float
    percent_of_floor: float
    peer: str | None = None
    peer_microseconds: float | None = None
    times_faster: float | None = None


def row(operation: str, shape: str, seconds: float, floor: float, peer: tuple[str, float] | None = None) -> Row:
    result = Row(operation, shape, round(seconds * 1e6, 2), round(floor * 1e6, 2), round(100 * floor / seconds, 1))
    if peer:
        result.peer, result.peer_microseconds = peer[0], round(peer[1] * 1e6, 2)
        result.times_faster = round(peer[1] / seconds, 3)
    print(" | ".join("" if value is None else str(value) for value in asdict(result).values()), flush=True)
    return result


def measure(calls: list[Callable[[], object]], replays: int = 15) -> float:
    """Median seconds of one call. The calls are captured in one graph. Its first replays are not timed, because an idle
    GPU needs a while to reach its full speed. Short calls are repeated within the graph, because starting a graph takes
    as long as a small kernel."""
    return measure_by_turns({"": calls}, replays)[""]


def measure_by_turns(rivals: dict[str, list[Callable[[], object]]], replays: int = 15) -> dict[str, float]:
    """`measure` for several candidates that take turns. Under long products a GPU lowers its clock by a fifth within a
    tenth of a second: without turns, the candidate timed last would look slower."""
    rivals = {name: calls * ceil(REPLAY_SECONDS / _seconds(_capture(calls))) for name, calls in rivals.items()}
    graphs = {name: _capture(calls) for name, calls in rivals.items()}
    awake = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < awake:
        for graph in graphs.values():
            graph.replay()
            torch.cuda.synchronize()
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(replays):
        for name, graph in graphs.items():
            if len(graphs) > 1:
                graph.replay()  # in the caches lies what another has left there
            seconds[name].append(_seconds(graph) / len(rivals[name]))
    return {name: statistics.median(times) for name, times in seconds.items()}


def _seconds(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def _capture(calls: list[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def rotations(bytes_per_call: float, least: int = 4) -> int:
    return max(least, int(COLD_BYTES // max(bytes_per_call, 1)) + 1)


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")
