"""Checks of what stands inside index tensors: block ids, slots, positions, lengths.

Kernels trust these values, and a wrong one reads or writes another sequence's memory. With `OCTAVO_CHECK=1` every
operation looks at them first, which makes it wait for the device; a CUDA graph that is being captured cannot wait, and
goes unchecked.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

ENABLED = os.environ.get("OCTAVO_CHECK", "0") not in ("", "0")


def wanted(tensor: Tensor) -> bool:
    return ENABLED and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def in_range(name: str, tensor: Tensor, least: int, end: int, what: str) -> None:
    """Raises `ValueError` unless all values are at least `least` and below `end`."""
    wrong = (tensor < least) | (tensor >= end)
    if bool(wrong.any()):
        place = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f"{name}{list(place)} is {int(tensor[place])}, but {what} lie between {least} and {end - 1}")


def writes(layer_cache: Tensor, block_size: int, slots: Tensor) -> None:
    """`slots` of a layer's cache; -1 writes nothing."""
    in_range("slots", slots, -1, layer_cache.shape[0] * block_size, "slots")


def reads(
    layer_cache: Tensor, block_size: int, block_tables: Tensor, context_lens: Tensor, query_start: Tensor, tokens: int,
    window: int,
) -> None:  # fmt: skip
    """Checks what attention of `tokens` query rows reads: only blocks that a query sees are looked at."""
    in_range(
        "context_lens", context_lens, 0, block_tables.shape[1] * block_size + 1, "lengths that block_tables covers"
    )
    in_range("query_start", query_start, 0, tokens + 1, "places of the rows of q")
    queries = query_start.diff()
    in_range("query_start", queries, 0, tokens + 1, "its differences")
    first = (context_lens - queries - window + 1).clamp(min=0) if window else torch.zeros_like(context_lens)
    begins = torch.arange(block_tables.shape[1], device=block_tables.device) * block_size
    seen = (begins < context_lens[:, None]) & (begins + block_size > first[:, None])
    in_range("block_tables", torch.where(seen, block_tables, 0), 0, layer_cache.shape[0], "block ids")
