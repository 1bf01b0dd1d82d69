"""The MLP of a block, up to its last product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Activation, Gate
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import Input


class Mlp(Protocol):
    @property
    def up(self) -> Linear:
        """The first product."""
        ...

    @property
    def down(self) -> Linear:
        """The last product."""
        ...

    def activate(self, x: Input, b: Buffers) -> Tensor:
        """The rows that `down` multiplies, in `b.activated`."""
        ...


@dataclass(frozen=True, slots=True)
class GatedMlp:
    up: Linear  # rows: gate, up
    down: Linear
    activation: Gate

    def activate(self, x: Input, b: Buffers) -> Tensor:
        return self.up.gated(x, self.activation, out=b.activated, scratch=b.up)


@dataclass(frozen=True, slots=True)
class PlainMlp:
    up: Linear
    down: Linear
    activation: Activation

    def activate(self, x: Input, b: Buffers) -> Tensor:
        return ops.act(self.up.apply(x, b.up), self.activation, out=b.activated)
