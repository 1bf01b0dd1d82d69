"""Weights in eight and four bits: what their codes mean, and what they are packed into."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the codes 0 to 7 of a float of two exponent and one mantissa bits; the fourth bit is the sign. OCP
Microscaling Formats 1.0, section 5.3.3."""


class Codes(IntEnum):
    """Code in which an element of a weight is stored."""

    INT4 = 0
    """0 to 15, two a byte, the lower four bits first; the zero point of a symmetric weight is 8."""
    INT8 = 1
    """-128 to 127; the zero point of a symmetric weight is 0."""
    FP4 = 2
    """e2m1, two a byte, the lower four bits first."""
    FP8 = 3
    """e4m3fn."""


class Activations(IntEnum):
    """Form into which the rows of x are turned before they meet the weight."""

    AS_GIVEN = 0
    INT8 = 1
    FP8 = 2


DTYPES = {
    Codes.INT4: torch.uint8,
    Codes.INT8: torch.int8,
    Codes.FP4: torch.uint8,
    Codes.FP8: torch.float8_e4m3fn,
}
PER_BYTE = {Codes.INT4: 2, Codes.INT8: 1, Codes.FP4: 2, Codes.FP8: 1}


class Scheme(NamedTuple):
    """How a weight is stored and multiplied. `group`: of so many codes of a row, side by side, each has the same scale
    (the last group may be shorter). `activation_group`: likewise of the rows of x where they are turned into codes; 0:
    one scale a row. A scale is never that of several rows of x."""

    codes: Codes
    group: int
    activations: Activations = Activations.AS_GIVEN
    activation_group: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedWeight:
    """`weight[columns, depth]` as every format of checkpoints is read: element `[n, k]` is
    `(code[n, k] - zeros[k // group, n]) * scales[k // group, n]`.

    `codes[columns, depth / PER_BYTE]` have the dtype of `DTYPES`, `scales[groups, columns]` are float32. `zeros` have
    the shape of `scales` and the dtype of the codes; without them a weight is symmetric, and one of floats has none.
    With `order[depth]` (int32, a permutation) the codes at `k` meet column `order[k]` of x: columns were sorted so that
    those of a group lie side by side.
    """

    scheme: Scheme
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    order: Tensor | None = None

    @property
    def columns(self) -> int:
        return len(self.codes)

    @property
    def depth(self) -> int:
        return self.codes.shape[1] * PER_BYTE[self.scheme.codes]


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A quantised weight as the kernels of its device read it, made by `pack`. Tensors may lie otherwise than in a
    `QuantisedWeight`; only the kernels read them."""

    scheme: Scheme
    columns: int
    depth: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    order: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in (self.codes, self.scales, self.zeros, self.order) if t is not None)


def check(weight: QuantisedWeight) -> None:
    """Raises `TypeError` or `ValueError`, naming the field, unless all tensors of a weight fit together."""
    scheme, columns, depth = weight.scheme, weight.columns, weight.depth
    groups = -(-depth // scheme.group) if scheme.group > 0 else 0
    wanted: dict[str, tuple[Tensor | None, torch.dtype, list[int]]] = {
        "codes": (weight.codes, DTYPES[scheme.codes], [columns, depth // PER_BYTE[scheme.codes]]),
        "scales": (weight.scales, torch.float32, [groups, columns]),
        "zeros": (weight.zeros, DTYPES[scheme.codes], [groups, columns]),
        "order": (weight.order, torch.int32, [depth]),
    }
    for name, (tensor, dtype, shape) in wanted.items():
        if tensor is None:
            continue
        if tensor.dtype is not dtype:
            raise TypeError(f"{name} must be {dtype}, not {tensor.dtype}")
        if list(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, not {list(tensor.shape)}")
    if weight.zeros is not None and scheme.codes in (Codes.FP4, Codes.FP8):
        raise ValueError(f"zeros are not for {scheme.codes.name} weights")


def values(codes: Tensor, kind: Codes) -> Tensor:
    """Values of `codes`, float32 `[columns, depth]`: integers less the zero point of a symmetric weight."""
    if kind is Codes.FP8 or kind is Codes.INT8:
        return codes.float()
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
    if kind is Codes.INT4:
        return nibbles.float() - 8
    table = torch.tensor(E2M1 + tuple(-value for value in E2M1), device=codes.device)
    return table[nibbles.int()]


def dequantise(weight: QuantisedWeight | PackedWeight) -> Tensor:
    """Float32 `[columns, depth]`, in the order of the columns of x."""
    scheme = weight.scheme
    group = torch.arange(weight.depth, device=weight.codes.device) // scheme.group
    result = values(weight.codes, scheme.codes)
    if weight.zeros is not None:
        middle = 8 if scheme.codes is Codes.INT4 else 0
        result -= (weight.zeros.float() - middle).T[:, group]
    result *= weight.scales.T[:, group]
    if weight.order is None:
        return result
    unsorted = torch.empty_like(result)
    unsorted[:, weight.order.long()] = result
    return unsorted
