"""Matrices of several experts as a GPU's kernels read their codes, with rows in 16 bits."""

from __future__ import annotations

from dataclasses import replace

import torch

from octavo_kernels import cuda
from octavo_kernels.products import coded_cuda
from octavo_kernels.products.coded import STRIP_ROWS, CodedWeight, bricks_of
from octavo_kernels.products.weights import Activations, Codes, PackedWeight, QuantisedWeight, Scheme

SHORT_SCALES = {Codes.INT4: (1, 2, 4), Codes.INT8: (), Codes.FP4: (4,), Codes.FP8: (1,)}
"""How many scales of each row of a brick may be bfloat16: `may_be_short` in csrc/cuda/coded_experts/groups.cuh."""
UNIT = 8
"""Columns of x are a multiple of that."""


def as_read(scheme: Scheme) -> Scheme:
    """The same codes with rows as they are given: no kernel of experts turns rows into codes, which loses more."""
    return scheme._replace(activations=Activations.AS_GIVEN, activation_group=0)


def takes(scheme: Scheme, columns: int, depth: int, device: torch.device, *, halves: int = 1) -> bool:
    """True if kernels of this device read the codes of experts of so many columns each, which are `halves` of whole
    strips."""
    if device.type != "cuda" or not cuda.runs_hopper_code(device):
        return False
    return columns % (STRIP_ROWS * halves) == 0 and depth % UNIT == 0 and bricks_of(as_read(scheme), depth) is not None


def pack_experts(weight: PackedWeight) -> CodedWeight:
    """A weight on a GPU, whose scheme the kernels take, as they read it: with scales in bfloat16 where all of them are
    numbers of it and none is huge, which these kernels alone know. Takes its tensors over."""
    if not isinstance(weight, CodedWeight):
        scheme = as_read(weight.scheme)
        weight = coded_cuda.pack(QuantisedWeight(scheme, weight.codes, weight.scales, weight.zeros, weight.order))
    if weight.bricks.scales not in SHORT_SCALES[weight.scheme.codes]:
        return weight
    short = weight.scales.bfloat16()
    are_short = torch.equal(short.float(), weight.scales) and bool(short.abs().max() < 2**32)  # as in paired.cuh
    return replace(weight, scales=short) if are_short else weight


def matrix_of(weight: CodedWeight, columns: int) -> tuple[object, ...]:
    """The module's `CodedExpertStrips` as a tuple, of experts with so many columns each."""
    return coded_cuda.matrix_of(weight, columns), weight.scales.dtype is torch.bfloat16
