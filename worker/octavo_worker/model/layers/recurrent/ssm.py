"""A mixer of Mamba2."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Convolution, GatedNorm, LayerStates, Moves
from octavo_worker.contract.state import StateSpec
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.recurrent.mixer import RecurrentMixer
from octavo_worker.model.recurrent.layers import SsmLayer


@dataclass(frozen=True, slots=True, eq=False)
class SsmWeights:
    """Weights beside the two products: see `ops.ssm_step`. `factors` are those of the first product's columns; None:
    all are 1."""

    convolution: Convolution
    norm: GatedNorm
    rates: Tensor
    dt_bias: Tensor
    skip: Tensor
    factors: Tensor | None = None


class SsmMixer(RecurrentMixer):
    """`inputs` gives gates, values, B, C and time steps of a row, side by side."""

    def __init__(
        self, layer: SsmLayer, state: StateSpec, inputs: Linear, out: Linear, weights: SsmWeights, chunked: bool
    ) -> None:
        super().__init__(state, inputs, out, chunked)
        self.layer, self.weights = layer, weights

    @property
    def kind(self) -> Hashable:
        return self.layer

    def advance(self, x: Tensor, states: LayerStates, moves: Moves, prompts: bool) -> Tensor:
        w = self.weights
        if w.factors is not None:
            x.mul_(w.factors)
        return ops.ssm_step(
            x, states, moves, w.convolution, w.norm, groups=self.layer.groups, rates=w.rates, dt_bias=w.dt_bias,
            skip=w.skip, dt_limit=self.layer.dt_limit, chunked=self.chunked and prompts,
        )  # fmt: skip
