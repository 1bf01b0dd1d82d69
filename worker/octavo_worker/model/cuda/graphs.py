"""Decode steps as CUDA graphs, one for each of some batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor


def batch_sizes(most: int) -> list[int]:
    """1, 2, 4, then multiples of 8, up to `most` sequences."""
    sizes = [1, 2, 4, *range(8, most, 8)]
    return sorted({size for size in sizes if size < most} | {most})


class CaptureError(RuntimeError):
    """A step waits for the device, or does something else that a graph cannot."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """What a graph is captured for: sequences, with padding, and whether some are grouped by what they share."""

    sequences: int
    is_shared: bool


@dataclass(slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor  # the graph's own memory: holds until another graph of the pool is replayed


class DecodeGraphs:
    """Captures `step(shape) -> logits` for some shapes of batches.

    All graphs share one memory pool, so only one of them runs at a time, and a replay ends what another one left.
    """

    def __init__(self, step: Callable[[DecodeShape], Tensor]) -> None:
        self._step = step
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[DecodeShape, Captured] = {}

    def __contains__(self, shape: DecodeShape) -> bool:
        return shape in self._captured

    def replay(self, shape: DecodeShape) -> Tensor:
        """Runs a captured graph on the current stream. Returns its logits."""
        captured = self._captured[shape]
        captured.graph.replay()
        return captured.logits

    def capture(self, shape: DecodeShape) -> None:
        """Runs the step once, so that modules are loaded and cuBLAS has chosen, then captures it."""
        self._step(shape)
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            logits = self._step(shape)
        except Exception as error:
            with suppress(RuntimeError):  # it failed already
                graph.capture_end()
            raise CaptureError(str(error).partition("\n")[0]) from error
        graph.capture_end()
        self._captured[shape] = Captured(graph, logits)
