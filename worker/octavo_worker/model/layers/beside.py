"""A mixture of experts beside a dense MLP, as in Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo_kernels.ops import Addend
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.mixture import ExpertMlp
from octavo_worker.model.layers.mlp import GatedMlp
from octavo_worker.model.layers.norm import AddNorm, Input, RmsNorm


@dataclass(frozen=True, slots=True)
class BesideMlp(ExpertMlp):
    """The sum of the norms of both outputs. The dense MLP takes the sublayer's input, the mixture the residual stream,
    of which experts and router each have a norm."""

    dense: GatedMlp
    dense_norm: RmsNorm
    mixture_norm: RmsNorm

    def products(self) -> Mapping[str, Linear]:
        return {**self.dense.products(), **self.mixture.products()}

    def into_norm(self, x: Input, b: Buffers, add_norm: AddNorm) -> Input:
        made = self.whole.apply(Input(b.hidden, slots=b.slots))
        delta = self.dense.down.apply(self.dense.activated(x, b), b.delta)
        return add_norm.add(b, Addend(delta, self.dense_norm.operand), Addend(made, self.mixture_norm.operand))
