"""Matrices of several experts as a GPU's kernels read their codes, with rows in 16 bits."""

from __future__ import annotations

import torch

from octavo_kernels import cuda
from octavo_kernels.products import coded_cuda
from octavo_kernels.products.coded import STRIP_ROWS, CodedWeight, bricks_of
from octavo_kernels.products.weights import Activations, PackedWeight, QuantisedWeight, Scheme

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
    """A weight on a GPU, whose scheme the kernels take, as they read it. Takes its tensors over."""
    if isinstance(weight, CodedWeight):
        return weight
    scheme = as_read(weight.scheme)
    return coded_cuda.pack(QuantisedWeight(scheme, weight.codes, weight.scales, weight.zeros, weight.order))
