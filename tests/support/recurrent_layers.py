"""Recurrent layers for tests: random operands, and their sequences run in steps that a test cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Convolution, GatedNorm, LayerStates, Moves
from octavo_kernels.recurrent import reference

SLOTS = 24


@dataclass(frozen=True)
class Part:
    """One sequence of a step: its number of rows, slots."""

    rows: int
    read: int = 0
    write: int = 0
    keeps: Sequence[tuple[int, int]] = ()


def moves_of(parts: Sequence[Part], device: torch.device | str = "cpu") -> Moves:
    def integers(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    keeps = [keep for part in parts for keep in part.keeps]
    return Moves(
        integers([0, *accumulate(part.rows for part in parts)]),
        integers([part.read for part in parts]),
        integers([part.write for part in parts]),
        integers([0, *accumulate(len(part.keeps) for part in parts)]),
        integers([after for after, _ in keeps]),
        integers([slot for _, slot in keeps]),
    )


@dataclass
class Layer:
    """One layer: its operation and reference with weights in them, columns of a row of its inputs and of its outputs,
    and the shapes of a slot's parts."""

    step: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    width: int
    inner: int
    matrix: tuple[int, ...] | None
    columns: tuple[int, int]
    dtype: torch.dtype
    convolution: Convolution = field(repr=False)

    def rows(self, count: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed + 1)
        return torch.randn(count, self.width, generator=generator).to(self.dtype)

    def states(self, fill: float = float("nan"), matrix_dtype: torch.dtype = torch.float32) -> LayerStates:
        """Slots side by side with other memory, as a layer has them; filled, so that what is read unasked shows."""
        matrices = None
        if self.matrix is not None:
            rows = self.matrix[0] * self.matrix[1] * self.matrix[2]
            padded = torch.full((SLOTS, rows + 3), fill, dtype=matrix_dtype)
            matrices = padded[:, :rows].unflatten(1, self.matrix)
        taps, channels = self.columns
        padded = torch.full((SLOTS, taps * channels + 5), fill, dtype=self.dtype)
        return LayerStates(matrices, padded[:, : taps * channels].unflatten(1, (taps, channels)))


def _convolution(taps: int, channels: int, dtype: torch.dtype, bias: bool) -> Convolution:
    weight = torch.randn(taps, channels) / 2
    return Convolution(weight.to(dtype), torch.randn(channels).to(dtype) if bias else None)


def delta_layer(
    key_heads: int = 2, heads: int = 4, key_dim: int = 16, value_dim: int = 24, *, dtype: torch.dtype = torch.float32,
    taps: int = 4, beta_scale: float = 1.0,
) -> Layer:  # fmt: skip
    keys, values = key_heads * key_dim, heads * value_dim
    convolution = _convolution(taps, 2 * keys + values, dtype, bias=False)
    weights = {
        "key_heads": key_heads, "rates": -torch.rand(heads) * 4 - 0.01, "dt_bias": torch.randn(heads),
        "beta_scale": beta_scale,
    }  # fmt: skip
    norm = GatedNorm((torch.rand(value_dim) + 0.5).repeat(heads), value_dim)
    bound = [
        partial(call, convolution=convolution, norm=norm, **weights) for call in (ops.delta_step, reference.delta_step)
    ]
    return Layer(
        *bound, 2 * keys + 2 * values + 2 * heads, values, (heads, key_dim, value_dim), (taps - 1, 2 * keys + values),
        dtype, convolution,
    )  # fmt: skip


def ssm_layer(
    groups: int = 2, heads: int = 4, size: int = 16, head_dim: int = 24, *, dtype: torch.dtype = torch.float32,
    taps: int = 4, norm: str = "group", dt_limit: tuple[float, float] = (0.0, float("inf")),
) -> Layer:  # fmt: skip
    """`norm`: of each "group" or the "whole" row, behind the gate; "before" it; "none"."""
    inner, channels = heads * head_dim, heads * head_dim + 2 * groups * size
    convolution = _convolution(taps, channels, dtype, bias=True)
    weight = None if norm == "none" else torch.rand(inner) + 0.5
    gated = GatedNorm(weight, inner if norm == "whole" else inner // groups, 1e-5, norm != "before")
    weights = {
        "groups": groups, "rates": -torch.rand(heads) * 4 - 0.01, "dt_bias": torch.randn(heads),
        "skip": torch.randn(heads), "dt_limit": dt_limit,
    }  # fmt: skip
    bound = [
        partial(call, convolution=convolution, norm=gated, **weights) for call in (ops.ssm_step, reference.ssm_step)
    ]
    return Layer(
        *bound, inner + channels + heads, inner, (heads, size, head_dim), (taps - 1, channels), dtype, convolution
    )  # fmt: skip


def conv_layer(channels: int = 40, *, dtype: torch.dtype = torch.float32, taps: int = 3, bias: bool = False) -> Layer:
    convolution = _convolution(taps, channels, dtype, bias)
    bound = [partial(call, convolution=convolution) for call in (ops.conv_step, reference.conv_step)]
    return Layer(*bound, 3 * channels, channels, None, (taps - 1, channels), dtype, convolution)


LAYERS: dict[str, Callable[..., Layer]] = {
    "delta": delta_layer,
    "delta, one key head, twice beta": partial(delta_layer, 1, 3, 9, 40, beta_scale=2.0),
    "ssm": ssm_layer,
    "ssm, whole norm, limits": partial(ssm_layer, 1, 5, 7, 33, norm="whole", dt_limit=(0.3, 1.5)),
    "ssm, norm before": partial(ssm_layer, norm="before"),
    "ssm, no norm": partial(ssm_layer, norm="none"),
    "conv": conv_layer,
    "conv, bias, wide": partial(conv_layer, 700, taps=5, bias=True),
}


def run(layer: Layer, x: Tensor, states: LayerStates, parts: Sequence[Part]) -> Tensor:
    return layer.step(x, states, moves_of(parts))


def same(a: LayerStates, a_slot: int, b: LayerStates, b_slot: int) -> bool:
    """True if two slots hold the same bits."""
    return torch.equal(a.columns[a_slot], b.columns[b_slot]) and (
        a.matrices is None or b.matrices is None or torch.equal(a.matrices[a_slot], b.matrices[b_slot])
    )
