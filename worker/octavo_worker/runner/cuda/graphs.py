"""Steps as CUDA graphs: decodes for some batch sizes, short prompts, with and without decodes beside them, and
passes of a draft model."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from octavo_worker.runner.cuda.shapes import PromptShape


class CaptureError(RuntimeError):
    """A step waits for the device, or does something else that a graph cannot."""


@dataclass(slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor  # the graph's own memory: holds until another graph of the pool is replayed


ShapeT = TypeVar("ShapeT", bound=Hashable)


class StepGraphs(Generic[ShapeT]):
    """Captures `step(shape) -> logits` for some shapes of batches. `trial` runs the kernels of a step before.

    All graphs share one memory pool, so only one of them runs at a time, and a replay ends what another one left.
    """

    def __init__(self, step: Callable[[ShapeT], Tensor], trial: Callable[[ShapeT], object]) -> None:
        self._step, self._trial = step, trial
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[ShapeT, Captured] = {}

    def __contains__(self, shape: ShapeT) -> bool:
        return shape in self._captured

    def forget_prompts(self, *, but: int) -> None:
        """Drops what was captured for plans with room for another number of chunks: their memory is gone."""
        gone = [shape for shape in self._captured if isinstance(shape, PromptShape) and shape.chunks != but]
        for shape in gone:
            del self._captured[shape]

    def replay(self, shape: ShapeT) -> Tensor:
        """Runs a captured graph on the current stream. Returns its logits."""
        captured = self._captured[shape]
        captured.graph.replay()
        return captured.logits

    def capture(self, shape: ShapeT) -> None:
        """Tries the step once, so that modules are loaded and cuBLAS has chosen, then captures it. Raises
        `CaptureError`."""
        self._trial(shape)
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with _nothing_collected():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                logits = self._step(shape)
            except Exception as error:
                with suppress(RuntimeError):  # it failed already
                    graph.capture_end()
                raise CaptureError(str(error).partition("\n")[0]) from error
            graph.capture_end()
        self._captured[shape] = Captured(graph, logits)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """A graph that the garbage collector frees meanwhile, of a runner that is gone, would end the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
