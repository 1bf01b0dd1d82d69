"""A mixer of the gated delta rule."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Convolution, GatedNorm, LayerStates, Moves
from octavo_worker.contract.state import StateSpec
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.recurrent.mixer import RecurrentMixer
from octavo_worker.model.recurrent.layers import DeltaLayer


@dataclass(frozen=True, slots=True, eq=False)
class DeltaWeights:
    """Weights beside the two products: see `ops.delta_step`."""

    convolution: Convolution
    norm: GatedNorm
    rates: Tensor
    dt_bias: Tensor


class DeltaMixer(RecurrentMixer):
    """`inputs` gives queries, keys, values, gates, betas and time steps of a row, side by side."""

    def __init__(
        self, layer: DeltaLayer, state: StateSpec, inputs: Linear, out: Linear, weights: DeltaWeights, chunked: bool
    ) -> None:
        super().__init__(state, inputs, out, chunked)
        self.layer, self.weights = layer, weights

    @property
    def kind(self) -> Hashable:
        return self.layer

    def advance(self, x: Tensor, states: LayerStates, moves: Moves, prompts: bool) -> Tensor:
        w = self.weights
        return ops.delta_step(
            x, states, moves, w.convolution, w.norm, key_heads=self.layer.key_heads, rates=w.rates, dt_bias=w.dt_bias,
            beta_scale=self.layer.beta_scale, chunked=self.chunked and prompts,
        )  # fmt: skip
