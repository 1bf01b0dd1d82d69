"""Attention over caches in eight bits."""

from __future__ import annotations

import torch

from kernel_rows.decode import decode
from kernel_rows.measuring import Row
from kernel_rows.prefill import prefill


def eight_bits() -> list[Row]:
    batches = {"B64 L8192": [8192] * 64, "B32 L4096": [4096] * 32, "B128 L1024": [1024] * 128, "B1 L32768": [32768]}
    rows = []
    for dtype in (torch.int8, torch.float8_e4m3fn):
        rows += [decode(name, lengths, 32, 8, dtype=dtype) for name, lengths in batches.items()]
        rows += prefill([8192], [8192], 32, 8, dtype=dtype)
    return rows
