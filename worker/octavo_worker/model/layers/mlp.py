"""The MLP of a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from octavo_kernels import ops
from octavo_kernels.ops import Activation, Gate
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import AddNorm, Input

GATE_UP = "gate, up"
"""A product whose first half is a gate."""


class Mlp(Protocol):
    """The sublayer after attention."""

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        ...

    def into_norm(self, x: Input, b: Buffers, add_norm: AddNorm) -> Input:
        """Its output for the rows of `x`, added to the residual stream `b.hidden`, and normalised for what follows."""
        ...


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """The gate is multiplied by `multiplier` before its activation."""

    up: Linear  # rows: gate, up
    down: Linear
    width: int
    activation: Gate
    multiplier: float = 1.0

    def products(self) -> Mapping[str, Linear]:
        return {GATE_UP: self.up, "down": self.down}

    def activated(self, x: Input, b: Buffers) -> Input:
        """The operand of `down`."""
        out, scratch = b.narrowed(b.activated, self.width), b.narrowed(b.up, 2 * self.width)
        if self.multiplier == 1.0:
            return Input(self.up.gated(x, self.activation, out=out, scratch=scratch), context=b.row_context)
        product = self.up.apply(x, scratch)
        product[:, : self.width].mul_(self.multiplier)
        return Input(ops.act_and_mul(product, self.activation, out=out), context=b.row_context)

    def into_norm(self, x: Input, b: Buffers, add_norm: AddNorm) -> Input:
        return self.down.into_norm(self.activated(x, b), b, add_norm)


@dataclass(frozen=True, slots=True)
class PlainMlp:
    """With `squared` activations each is multiplied by itself."""

    up: Linear
    down: Linear
    width: int
    activation: Activation
    squared: bool = False

    def products(self) -> Mapping[str, Linear]:
        return {"up": self.up, "down": self.down}

    def into_norm(self, x: Input, b: Buffers, add_norm: AddNorm) -> Input:
        up, out = b.narrowed(b.up, self.width), b.narrowed(b.activated, self.width)
        activated = ops.act(self.up.apply(x, up), self.activation, out=out)
        if self.squared:
            activated.mul_(activated)
        return self.down.into_norm(Input(activated, context=b.row_context), b, add_norm)
