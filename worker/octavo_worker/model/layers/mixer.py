"""The sublayer of a block that mixes the tokens of a sequence: attention, or another."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from octavo_worker.contract.cache import CacheSpec
from octavo_worker.model.batch import Batch
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import AddNorm, Input
from octavo_worker.model.layers.tables import Tables


class Mixer(Protocol):
    """The first sublayer of a block, as the block and the decoder see it."""

    def kept(self, dtype: torch.dtype) -> CacheSpec | None:
        """The keys and values that it keeps of a token in the type `dtype`; None: it keeps none."""
        ...

    @property
    def kind(self) -> Hashable:
        """Equal to that of a layer whose steps take the same kernels."""
        ...

    def bind(self, cache: Tensor | None, block_size: int, tables: Tables) -> None:
        """Attachment of its part of the blocks, None if it keeps no keys and values."""
        ...

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        ...

    def attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        """Rows of all tokens into `b.attended`, which it may set: `[T, ...]`."""
        ...

    def into_norm(self, b: Buffers, add_norm: AddNorm) -> Input:
        """The output of `b.attended`, of all rows or of some, added to the residual stream `b.hidden`, and normalised
        for what follows."""
        ...
