"""Memory of pairs of blocks that share the depth of tiles (csrc/cuda/device/shared_depth.cuh)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from octavo_kernels.products.choice import over
from octavo_kernels.products.product import Product

NONE = (0, 0)
"""Of a launch without shared tiles."""


def floats(shares: int, consumers: int, tokens: int) -> int:
    """How many sums `shares` pairs store: each has up to two parts of tiles, and two blocks."""
    return shares * 2 * 2 * 64 * consumers * tokens


def tiles(rows: int, columns: int, consumers: int, tokens: int) -> int:
    """Pairs of tiles of a product."""
    return over(rows, tokens) * over(columns, 2 * 64 * consumers)


def fits(p: Product[Any], count: int) -> bool:
    """True if the product has counters for so many pairs of tiles, beside its first one."""
    return p.counter is not None and len(p.counter) > 2 * 2 * count


def room(p: Product[Any], shares: int, consumers: int, tokens: int) -> tuple[tuple[int, int], Tensor]:
    """The module's `Meetings`, and the tensor whose memory is theirs until the stream has passed the launch."""
    assert p.counter is not None
    parts = torch.empty(floats(shares, consumers, tokens), dtype=torch.float32, device=p.x.device)
    return (parts.data_ptr(), p.counter.data_ptr() + p.counter.element_size()), parts
