"""A mixer of short convolutions."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Convolution, LayerStates, Moves
from octavo_worker.contract.state import StateSpec
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.recurrent.mixer import RecurrentMixer
from octavo_worker.model.recurrent.layers import ConvLayer


class ConvMixer(RecurrentMixer):
    """`inputs` gives both gates and the values of a row, side by side: see `ops.conv_step`."""

    def __init__(
        self, layer: ConvLayer, state: StateSpec, inputs: Linear, out: Linear, convolution: Convolution
    ) -> None:
        super().__init__(state, inputs, out)
        self.layer, self.convolution = layer, convolution

    @property
    def kind(self) -> Hashable:
        return self.layer

    def advance(self, x: Tensor, states: LayerStates, moves: Moves, prompts: bool) -> Tensor:
        return ops.conv_step(x, states, moves, self.convolution)
