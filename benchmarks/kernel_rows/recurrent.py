"""Recurrent layers between their products: one layer of a model's shape, of several so that states are cold."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from octavo_kernels import cuda, ops
from octavo_kernels.ops import Convolution, GatedNorm, LayerStates, Moves
from octavo_kernels.recurrent import delta

from .measuring import READ, Row, bf16, changed, measure, rotations, row

LANES = 132 * 128 * 1.98e9  # operations of float32 that an H200 begins in a second
CUTS = 5  # of the delta rule that `delta_step_cut` has
PROMPTS = ((1, 8192), (16, 8192))  # sequences, tokens of each
STEPS = ((1, 1), (32, 1), (256, 1), *PROMPTS)


def floats(*shape: int) -> Tensor:
    return torch.rand(shape, device="cuda")


def moves(sequences: int, tokens: int) -> Moves:
    """States in place, none of which is kept beside."""
    slots = torch.arange(1, sequences + 1, dtype=torch.int32, device="cuda")
    none = torch.empty(0, dtype=torch.int32, device="cuda")
    starts = torch.arange(sequences + 1, dtype=torch.int32, device="cuda") * tokens
    return Moves(starts, slots, slots, torch.zeros_like(starts), none, none)


def states(sequences: int, channels: int, taps: int, *matrix: int) -> LayerStates:
    columns = bf16(sequences + 1, taps - 1, channels)
    return LayerStates(floats(sequences + 1, *matrix) if matrix else None, columns)


class Delta:
    """The gated delta rule of Qwen3.5-4B, 9B and 35B-A3B."""

    name, key_heads, matrix = "gated delta rule, 16 / 32 heads", 16, (32, 128, 128)
    operations = 4  # in float32 of an element and token: two products, a decay and an update

    def __init__(self) -> None:
        heads, _, dim = self.matrix
        self.inner, self.channels = heads * dim, 2 * self.key_heads * dim + heads * dim
        self.width, self.taps = self.channels + self.inner + 2 * heads, 4
        self.step = partial(
            ops.delta_step, convolution=Convolution(bf16(4, self.channels).div_(2)), key_heads=self.key_heads,
            norm=GatedNorm(floats(self.inner), dim), rates=-floats(heads), dt_bias=floats(heads),
        )  # fmt: skip


class ChunkedDelta(Delta):
    """The same, with prompts by chunks."""

    name = f"{Delta.name}, chunks"

    def __init__(self) -> None:
        super().__init__()
        self.step = partial(self.step, chunked=True)


class Ssm:
    """Mamba2 of Granite-4-H-Small, or, with 64 heads and 8 groups, of Nemotron-3-Nano."""

    operations = 3

    def __init__(self, heads: int, groups: int) -> None:
        self.name, self.matrix = f"Mamba2, {groups} groups, {heads} heads", (heads, 128, 64)
        self.inner, self.channels = heads * 64, heads * 64 + 2 * groups * 128
        self.width, self.taps = self.channels + self.inner + heads, 4
        self.step = partial(
            ops.ssm_step, convolution=Convolution(bf16(4, self.channels).div_(2), bf16(self.channels)), groups=groups,
            norm=GatedNorm(floats(self.inner), self.inner // groups, gate_first=True), rates=-floats(heads),
            dt_bias=floats(heads), skip=floats(heads),
        )  # fmt: skip


class ChunkedSsm(Ssm):
    """The same, with prompts by chunks, whose products are of tensor cores: floors are those of bytes."""

    operations = 0

    def __init__(self, heads: int, groups: int) -> None:
        super().__init__(heads, groups)
        self.name, self.step = f"{self.name}, chunks", partial(self.step, chunked=True)


class ShortConvolution:
    """The short convolution of LFM2-1.2B."""

    name, matrix, operations = "short convolution, 2,048 channels", (), 0

    def __init__(self) -> None:
        self.channels = self.inner = 2048
        self.width, self.taps = 3 * self.channels, 3
        self.step = partial(ops.conv_step, convolution=Convolution(bf16(3, self.channels)))


Layer = Delta | Ssm | ShortConvolution


def calls(layer: Layer, sequences: int, tokens: int, layers: int) -> list[Callable[[], object]]:
    x, words = bf16(sequences * tokens, layer.width), moves(sequences, tokens)
    out = torch.empty(sequences * tokens, layer.inner, dtype=x.dtype, device="cuda")
    each = [states(sequences, layer.channels, layer.taps, *layer.matrix) for _ in range(layers)]
    return [partial(layer.step, x, one, words, out=out) for one in each]


def in_blocks(cut: int) -> AbstractContextManager[None]:
    """The delta rule cut into blocks in one way; 0: as it chooses."""

    def run(_: str, tensors: dict[str, Tensor], *arguments: object) -> None:
        cuda.run("delta_step_cut", tensors["x"].device, *arguments, cut)

    return changed(delta, run=run) if cut else nullcontext()


def recurrent_rows() -> list[Row]:
    """Floors are the bytes of rows, and of states that are read and written, or the operations."""
    made = []
    mamba = (Ssm(128, 1), ChunkedSsm(128, 1), Ssm(64, 8), ChunkedSsm(64, 8))
    for layer in (Delta(), ChunkedDelta(), *mamba, ShortConvolution()):
        for sequences, tokens in PROMPTS if isinstance(layer, ChunkedDelta | ChunkedSsm) else STEPS:
            elements = torch.Size(layer.matrix).numel() if layer.matrix else 0
            moved = 8 * sequences * elements + 2 * sequences * tokens * (layer.width + layer.inner)
            floor = max(moved / READ, sequences * tokens * layer.operations * elements / LANES)
            work = calls(layer, sequences, tokens, rotations(moved, 2) if tokens == 1 else 1)
            for cut in range(CUTS + 1 if type(layer) is Delta else 1):
                with in_blocks(cut):
                    shape = f"{sequences} x {tokens}" + f", blocks {cut}" * bool(cut)
                    made.append(row(layer.name, shape, measure(work), floor))
            del work
    return made
