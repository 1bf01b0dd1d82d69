"""How fast a GPU reads memory and multiplies matrices at best."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

READ_BYTES = 2**32  # many times what its caches hold
MATRIX = 8192
RUNS = 9


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes a second that are read, floating-point operations a second of a product."""

    bandwidth: float
    flops: float

    def to_json(self) -> dict[str, float]:
        return {"read_tb_s": round(self.bandwidth / 1e12, 3), "tflop_s": round(self.flops / 1e12, 1)}


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Measured now: a sum over much memory, and a product of two square matrices of random values in `dtype`."""
    data = torch.empty(READ_BYTES // 4, dtype=torch.float32, device=device).uniform_()  # integers are summed slowly
    bandwidth = READ_BYTES / _seconds(data.sum)
    a, b = (torch.randn(MATRIX, MATRIX, dtype=dtype, device=device) for _ in range(2))
    return Ceilings(bandwidth, 2 * MATRIX**3 / _seconds(lambda: a @ b))


def _seconds(run: Callable[[], object]) -> float:
    """Median of some runs after three that do not count."""
    times = []
    for _ in range(3 + RUNS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        run()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return float(statistics.median(times[3:]))
