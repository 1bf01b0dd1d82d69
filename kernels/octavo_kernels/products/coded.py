"""Weights of codes as the CUDA kernels for rows in 16 bits read them: strips of sixteen rows, cut into bricks of 1 KB.

csrc/cuda/coded/codes.cuh says where a code lies in its brick. One layout serves every kernel and every format of
checkpoints: GPTQ, AWQ, packed integers, and floats of four and eight bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from octavo_kernels.products.weights import PER_BYTE, Activations, Codes, PackedWeight, QuantisedWeight, Scheme

STRIP_ROWS = 16
BRICK_DEPTH = {Codes.INT4: 128, Codes.INT8: 64, Codes.FP4: 128, Codes.FP8: 64}
BRICK_SCALES = {Codes.INT4: (1, 2, 4), Codes.INT8: (1, 2), Codes.FP4: (4, 8), Codes.FP8: (1,)}
"""How many scales of each row of a brick there are kernels for: `with_codes` in codes.cuh."""
MIDDLE = {Codes.INT4: 8, Codes.INT8: 128, Codes.FP4: 0, Codes.FP8: 0}
"""The code of zero in a symmetric weight, as it is stored."""


class Bricks(NamedTuple):
    """How a row of a weight is cut: the depth of a brick, and how many scales go with one (1: one, or less)."""

    depth: int
    scales: int


@dataclass(frozen=True, slots=True, eq=False)
class CodedWeight(PackedWeight):
    """`codes[strips, bricks, 1024]`, `scales` and `zeros[strips, groups, 16]`, all of them with what fills up the last
    strip and brick. Integers are stored from 0 on: codes and zeros of eight bits plus 128, as uint8."""

    @property
    def bricks(self) -> Bricks:
        bricks = bricks_of(self.scheme, self.depth)
        assert bricks is not None
        return bricks


def bricks_of(scheme: Scheme, depth: int) -> Bricks | None:
    """None: there are no kernels for this scheme. They are for rows as given, and for groups that divide a brick or are
    a power of two of bricks, or all of a row."""
    brick, group = BRICK_DEPTH[scheme.codes], scheme.group
    if scheme.activations is not Activations.AS_GIVEN or depth < 1:
        return None
    if group >= depth:
        scales = 1
    elif group >= brick:
        scales = 1 if group % brick == 0 and (group // brick).bit_count() == 1 else 0
    else:
        scales = brick // group if brick % group == 0 else 0
    return Bricks(brick, scales) if scales in BRICK_SCALES[scheme.codes] else None


def lay_out(weight: QuantisedWeight) -> CodedWeight:
    """The same weight in this layout, on the device that it lies on, which takes four times its codes of memory for a
    while. Raises `ValueError` if there are no kernels for its scheme."""
    scheme, columns, depth = weight.scheme, weight.columns, weight.depth
    bricks = bricks_of(scheme, depth)
    if bricks is None:
        raise ValueError(f"no CUDA kernels for {scheme}")
    kind, rows = scheme.codes, -columns % STRIP_ROWS
    codes = pad(_separate(weight.codes, kind), (0, -depth % bricks.depth, 0, rows), value=MIDDLE[kind])
    groups = codes.shape[1] // bricks.depth * bricks.scales if bricks.scales > 1 else len(weight.scales)

    def in_strips(x: Tensor) -> Tensor:
        full: Tensor = pad(x, (0, rows, 0, groups - len(x)))
        return full.view(groups, -1, STRIP_ROWS).transpose(0, 1).contiguous()

    zeros = None if weight.zeros is None else in_strips(_from_zero(weight.zeros))
    return CodedWeight(
        scheme, columns, depth, _in_bricks(codes, kind), in_strips(weight.scales), zeros, weight.order
    )  # fmt: skip


def _from_zero(integers: Tensor) -> Tensor:
    """Integers as uint8, those with a sign plus 128."""
    return integers.view(torch.uint8).bitwise_xor(0x80) if integers.dtype is torch.int8 else integers


def _separate(codes: Tensor, kind: Codes) -> Tensor:
    """uint8 `[columns, depth]`, one code a byte."""
    if PER_BYTE[kind] == 2:
        return torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
    return _from_zero(codes) if kind is Codes.INT8 else codes.view(torch.uint8)


def _in_bricks(codes: Tensor, kind: Codes) -> Tensor:
    """`[strips, bricks, 1024]` of `codes[columns, depth]`, whole strips and bricks, named as in codes.cuh: lanes are
    8 rows x 4 pairs; the registers of a step are both halves of the strip's rows, then both eights of the depth."""
    steps = BRICK_DEPTH[kind] // 16
    strips, bricks = codes.shape[0] // STRIP_ROWS, codes.shape[1] // BRICK_DEPTH[kind]
    # strip, half, row, brick, load, step, eight, pair, element
    parts = codes.view(strips, 2, 8, bricks, 2, steps // 2, 2, 4, 2)
    if PER_BYTE[kind] == 1:
        return parts.permute(0, 3, 4, 2, 7, 5, 6, 1, 8).reshape(strips, bricks, 1024)
    low, high = parts.permute(0, 3, 4, 2, 7, 5, 8, 6, 1).unbind(-1)
    return (low | high << 4).reshape(strips, bricks, 1024)
