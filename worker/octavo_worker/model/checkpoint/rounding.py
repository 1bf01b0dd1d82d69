"""Matrices in floating point to codes and scales, by rounding to nearest: no text is needed, and each row of a matrix
is rounded by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.products.weights import DTYPES, PER_BYTE, Activations, Codes, QuantisedWeight, Scheme
from octavo_worker.contract.options import OnlineQuantization
from octavo_worker.model.errors import UnsupportedModel

PIECE = 1 << 24
"""Elements that are rounded at a time: in float32 they and what is made of them take some hundred megabytes."""

GROUPS = (128, 64, 32, 16, 8, 4, 2)
LARGEST = {Codes.INT8: 127.0, Codes.FP8: 448.0}


def scheme_of(kind: OnlineQuantization, depth: int) -> Scheme:
    """How a matrix of that depth is stored. Four bits have groups of 128, or of the largest smaller power of two that
    divides the depth. Raises `UnsupportedModel` for an odd depth."""
    match kind:
        case "fp8":
            return Scheme(Codes.FP8, depth, Activations.FP8)
        case "int8":
            return Scheme(Codes.INT8, depth, Activations.INT8)
        case "int4":
            group = next((group for group in GROUPS if depth % group == 0), None)
            if group is None:
                raise UnsupportedModel(f"a matrix {depth} deep has no even groups; give --quantization int8 or fp8.")
            return Scheme(Codes.INT4, group)


def quantised(weight: Tensor, kind: OnlineQuantization) -> QuantisedWeight:
    """Codes and scales of `weight[columns, depth]`, on its device."""
    columns, depth = weight.shape
    scheme = scheme_of(kind, depth)
    dtype = DTYPES[scheme.codes]
    codes = torch.empty((columns, depth // PER_BYTE[scheme.codes]), dtype=dtype, device=weight.device)
    scales = torch.empty((depth // scheme.group, columns), dtype=torch.float32, device=weight.device)
    zeros = torch.empty_like(scales, dtype=dtype) if scheme.codes is Codes.INT4 else None
    rows = max(1, PIECE // depth)
    for at in range(0, columns, rows):
        piece = weight[at : at + rows].float().unflatten(1, (-1, scheme.group))
        if zeros is None:
            codes[at : at + rows], scales[:, at : at + rows] = _symmetric(piece, scheme.codes)
        else:
            made = _four_bits(piece, weight.dtype)
            codes[at : at + rows], scales[:, at : at + rows], zeros[:, at : at + rows] = made
    return QuantisedWeight(scheme, codes, scales, zeros)


def _symmetric(groups: Tensor, codes: Codes) -> tuple[Tensor, Tensor]:
    """`groups[rows, groups, group]` to codes `[rows, depth]` and scales `[groups, rows]`: the largest magnitude of a
    group is the largest code."""
    largest = LARGEST[codes]
    most = groups.abs().amax(-1, keepdim=True)
    scales = most / most.new_tensor(largest)  # a GPU multiplies by the reciprocal of a number that is no tensor
    scaled = (groups / _divisor(scales)).clamp_(-largest, largest)
    rounded = scaled.round_() if codes is Codes.INT8 else scaled
    return rounded.to(DTYPES[codes]).flatten(1), scales[..., 0].T


def _four_bits(groups: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, two a byte, scales and zero points: the codes 0 to 15 span from the least to the largest of a group's
    values and zero, which is a code itself. Scales are numbers of `dtype`, as those of checkpoints are: kernels need no
    floats in between then. On the bundled model the divergence is three quarters of that of symmetric codes
    (docs/engine.md)."""
    low, high = groups.amin(-1, keepdim=True).clamp_(max=0), groups.amax(-1, keepdim=True).clamp_(min=0)
    scales = ((high - low) / low.new_tensor(15)).to(dtype).float()  # as above
    divisor = _divisor(scales)
    zeros = (-low / divisor).round_().clamp_(0, 15)
    codes = (groups / divisor).round_().add_(zeros).clamp_(0, 15).to(torch.uint8).flatten(1)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales[..., 0].T, zeros[..., 0].T.to(torch.uint8)


def _divisor(scales: Tensor) -> Tensor:
    """A group of zeros has the scale 0 and the codes of zero."""
    return torch.where(scales == 0, 1.0, scales)
