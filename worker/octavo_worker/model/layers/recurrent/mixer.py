"""The common part of recurrent mixers: a product before the recurrence, one behind it, and a state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from octavo_kernels.ops import LayerStates, Moves
from octavo_worker.contract.state import StateSpec
from octavo_worker.model.batch import Batch
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import AddNorm, Input
from octavo_worker.model.layers.tables import Tables


class RecurrentMixer(ABC):
    """A layer that keeps a state of a sequence, and nothing of a token. `bind_states` attaches its part of the slots;
    then `attend` advances them by the tokens of a step."""

    def __init__(self, state: StateSpec, inputs: Linear, out: Linear, chunked: bool = False) -> None:
        """`inputs` makes what the operation takes of a row, `out` projects what it makes. `chunked`: prompts are
        computed by chunks."""
        self.state, self.chunked = state, chunked
        self.inputs, self.out = inputs, out
        self.states: LayerStates | None = None

    @abstractmethod
    def advance(self, x: Tensor, states: LayerStates, moves: Moves, prompts: bool) -> Tensor:
        """Output of the layer for the rows `x`, between its products; without `prompts` no sequence is one."""

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """Equal to that of a layer whose steps take the same kernels."""

    def kept(self, dtype: torch.dtype) -> None:
        """It keeps nothing of a token."""
        return

    def bind(self, cache: Tensor | None, block_size: int, tables: Tables) -> None:
        assert cache is None

    def bind_states(self, states: LayerStates) -> None:
        self.states = states

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        return {"in": self.inputs, "out": self.out}

    def attend(self, x: Input, b: Buffers, batch: Batch) -> None:
        """The layer's output for all rows, before its last product, into `b.attended`."""
        assert self.states is not None, "no states are bound"
        assert batch.moves is not None, "a step says what it does with states"
        b.attended = self.advance(self.inputs.apply(x), self.states, batch.moves, batch.prompts)

    def into_norm(self, b: Buffers, add_norm: AddNorm) -> Input:
        """The output of `b.attended`, added to the residual stream `b.hidden`, and normalised for what follows."""
        return self.out.into_norm(Input(b.attended, context=b.row_context), b, add_norm)
