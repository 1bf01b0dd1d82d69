"""Attention and a recurrence side by side."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from octavo_kernels.ops import Addend, LayerStates
from octavo_worker.contract.cache import CacheSpec
from octavo_worker.model.batch import Batch
from octavo_worker.model.config import Branches
from octavo_worker.model.layers.attention import Attention
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import AddNorm, Input
from octavo_worker.model.layers.recurrent.mixer import RecurrentMixer
from octavo_worker.model.layers.tables import Tables


class BranchMixer:
    """Both read the same rows. What they make of them lies side by side in `b.attended`; their last products are
    added, each times its factor."""

    def __init__(self, layer: Branches, attention: Attention, recurrent: RecurrentMixer) -> None:
        self.layer, self.attention, self.recurrent = layer, attention, recurrent
        self.state, self.chunked = recurrent.state, recurrent.chunked

    @property
    def kind(self) -> Hashable:
        return self.attention.kind, self.recurrent.kind

    def kept(self, dtype: torch.dtype) -> CacheSpec:
        return self.attention.kept(dtype)

    def bind(self, cache: Tensor | None, block_size: int, tables: Tables) -> None:
        self.attention.bind(cache, block_size, tables)

    def bind_states(self, states: LayerStates) -> None:
        self.recurrent.bind_states(states)

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        return {
            **self.attention.products(),
            **{f"recurrent {name}": linear for name, linear in self.recurrent.products().items()},
        }

    def attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        rows = Input(x.materialise(), context=x.context)
        self.recurrent.attend(rows, b, batch)
        advanced = b.attended
        self.attention.attend(rows, b, batch)
        b.attended = torch.cat((b.attended.flatten(1), advanced), dim=1)

    def into_norm(self, b: Buffers, add_norm: AddNorm) -> Input:
        c = self.attention.config
        attended, advanced = b.attended.split((c.q_size, b.attended.shape[1] - c.q_size), dim=1)
        out = self.attention.out.apply(Input(attended.contiguous(), context=b.row_context), b.delta)
        other = self.recurrent.out.apply(Input(advanced.contiguous(), context=b.row_context))
        out.mul_(self.layer.attention_factor).add_(other.mul_(self.layer.recurrent_factor))
        return add_norm.add(b, Addend(out))
