"""Recurrent layers as configs describe them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from octavo_worker.contract.state import StateSpec


class Segment(NamedTuple):
    """Columns side by side that belong together: `units`, such as heads, each so `wide`. Ranks share the units out."""

    units: int
    wide: int

    @property
    def size(self) -> int:
        return self.units * self.wide


@dataclass(frozen=True, slots=True)
class DeltaLayer:
    """A layer of the gated delta rule: see `ops.delta_step`. `negative`: betas reach 2, so that eigenvalues may be
    negative."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    taps: int
    norm_eps: float
    negative: bool = False

    @property
    def segments(self) -> list[Segment]:
        """Columns of the product in front: queries, keys, values, gates, betas, time steps."""
        key, value, head = (
            Segment(self.key_heads, self.key_dim), Segment(self.heads, self.value_dim), Segment(self.heads, 1),
        )  # fmt: skip
        return [key, key, value, value, head, head]

    @property
    def convolved(self) -> list[Segment]:
        """Segments that go through the convolution."""
        return self.segments[:3]

    @property
    def inner(self) -> Segment:
        """Columns that the last product takes."""
        return Segment(self.heads, self.value_dim)

    @property
    def matrix(self) -> tuple[int, ...]:
        """Shape of its recurrence."""
        return self.heads, self.key_dim, self.value_dim

    @property
    def beta_scale(self) -> float:
        return 2.0 if self.negative else 1.0


@dataclass(frozen=True, slots=True)
class SsmLayer:
    """A layer of Mamba2: see `ops.ssm_step`. Its norm has `norm_groups` (0: there is none, but a gate) and the gate in
    front of it, or behind it if `gate_last`; `biased` is the convolution. `factors` are those of each segment."""

    heads: int
    head_dim: int
    groups: int
    state_size: int
    taps: int
    norm_eps: float
    norm_groups: int
    gate_last: bool = False
    biased: bool = True
    dt_limit: tuple[float, float] = (0.0, float("inf"))
    factors: tuple[float, ...] | None = None

    @property
    def segments(self) -> list[Segment]:
        """Columns of the product in front: gates, values, B, C, time steps."""
        value, shared = Segment(self.heads, self.head_dim), Segment(self.groups, self.state_size)
        return [value, value, shared, shared, Segment(self.heads, 1)]

    @property
    def convolved(self) -> list[Segment]:
        """Segments that go through the convolution."""
        return self.segments[1:4]

    @property
    def inner(self) -> Segment:
        """Columns that the last product takes."""
        return Segment(self.heads, self.head_dim)

    @property
    def matrix(self) -> tuple[int, ...]:
        """Shape of its recurrence."""
        return self.heads, self.state_size, self.head_dim


@dataclass(frozen=True, slots=True)
class ConvLayer:
    """A layer of short convolutions: see `ops.conv_step`."""

    channels: int
    taps: int
    biased: bool = False

    @property
    def segments(self) -> list[Segment]:
        """Columns of the product in front: gates of the inputs, gates of the outputs, values."""
        return [self.inner] * 3

    @property
    def convolved(self) -> list[Segment]:
        """Segments that go through the convolution."""
        return [self.inner]

    @property
    def inner(self) -> Segment:
        """Columns that the last product takes."""
        return Segment(self.channels, 1)

    @property
    def matrix(self) -> tuple[int, ...]:
        """It has no recurrence."""
        return ()


RecurrentLayer = DeltaLayer | SsmLayer | ConvLayer


def state_of(layer: RecurrentLayer, dtype: str) -> StateSpec:
    """The state of a sequence that a layer keeps, if the model's type is `dtype`."""
    channels = sum(segment.size for segment in layer.convolved)
    return StateSpec(layer.matrix, (channels, layer.taps - 1), dtype)
