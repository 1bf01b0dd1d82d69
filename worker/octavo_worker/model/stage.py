"""Copies of a step's blocks on the device, a layer at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_worker.model.transfer import on_device

STAGE_BYTES = 512 << 20
"""The most of one layer that is copied."""

UNIT = torch.complex128  # the widest type: a copy moves 16 bytes a thread


@dataclass(frozen=True, slots=True)
class Stage:
    """The blocks of all sequences of a step, `blocks[n]`, and `tables[S, W]` (int32), their block tables into the copy.

    A prompt's chunk has many tiles of queries, each of which would read host blocks over the link. Gathered first, a
    layer crosses the link once.
    """

    blocks: Tensor
    tables: Tensor

    @staticmethod
    def fits(contexts: np.ndarray, block_size: int, block_bytes: int) -> bool:
        """True if the blocks of sequences with `contexts[S]` tokens, of `block_bytes` in one layer, have room."""
        return int(_counts(contexts, block_size).sum()) * block_bytes <= STAGE_BYTES

    @classmethod
    def of(cls, tables: Tensor, contexts: np.ndarray, block_size: int) -> Stage:
        """`tables[S, W]` (int32, on the device) are the block tables of sequences with `contexts[S]` tokens."""
        counts = _counts(contexts, block_size)
        ends = np.cumsum(counts)
        rows = np.repeat(np.arange(len(counts)), counts)
        columns = np.arange(ends[-1]) - (ends - counts)[rows]
        places = on_device(np.stack([rows, columns]), torch.int64, tables.device)
        starts = on_device(ends - counts, torch.int32, tables.device)
        width = torch.arange(tables.shape[1], dtype=torch.int32, device=tables.device)
        return cls(tables[places[0], places[1]], starts[:, None] + width)

    def gather(self, layer_cache: Tensor) -> Tensor:
        """The blocks of one layer, contiguous."""
        return torch.index_select(layer_cache.view(UNIT), 0, self.blocks).view(layer_cache.dtype)


def _counts(contexts: np.ndarray, block_size: int) -> np.ndarray:
    return -(-contexts // block_size)
