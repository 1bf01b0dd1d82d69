"""How fast a device reads its memory."""

from __future__ import annotations

import time

import psutil
import torch

BYTES = 1 << 30
"""More than the caches of most machines hold."""
RUNS = 5


def read_rate(device: torch.device) -> float:
    """Bytes a second, measured now in some tenths of a second: the best of some sums over much memory."""
    free = psutil.virtual_memory().available if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    data = torch.ones(min(BYTES, free // 4) // 4, dtype=torch.float32, device=device)
    return data.nbytes / min(_seconds(data) for _ in range(RUNS))


def _seconds(data: torch.Tensor) -> float:
    began = time.perf_counter()
    data.sum().item()  # which waits
    return time.perf_counter() - began
