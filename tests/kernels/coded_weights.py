"""Random quantised weights of every form that the CUDA kernels take."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.products.weights import DTYPES, PER_BYTE, Codes, QuantisedWeight, Scheme

ROW = 1 << 30
"""A group that is all of a row."""
FORMS = [
    (Codes.INT4, 128), (Codes.INT4, 64), (Codes.INT4, 32), (Codes.INT4, 256), (Codes.INT4, ROW), (Codes.INT8, 128),
    (Codes.INT8, 64), (Codes.INT8, 32), (Codes.INT8, ROW), (Codes.FP4, 32), (Codes.FP4, 16), (Codes.FP8, 128),
    (Codes.FP8, ROW),
]  # fmt: skip
FORM_NAMES = [f"{kind.name}-{'row' if group == ROW else group}" for kind, group in FORMS]


def random_codes(kind: Codes, *shape: int, device: str = "cpu") -> Tensor:
    """Every code but NaN."""
    raw = torch.randint(0, 256, shape, device=device, dtype=torch.uint8)
    if kind is Codes.FP8:
        raw = torch.where(raw & 0x7F == 0x7F, raw & 0x80, raw)
    return raw.view(DTYPES[kind])


def random_weight(
    kind: Codes, group: int, columns: int, depth: int, zeros: bool = False, order: bool = False, device: str = "cpu"
) -> QuantisedWeight:
    """Scales are such that a product with normal rows is about one, and differ between rows and groups."""
    groups = -(-depth // group)
    spread = {Codes.INT4: 4.6, Codes.INT8: 74.0, Codes.FP4: 2.9, Codes.FP8: 90.0}[kind]
    scales = (torch.rand(groups, columns, device=device) + 0.5) / (spread * depth**0.5)
    points = None
    if zeros:
        points = random_codes(kind, groups, columns, device=device)
        points = points & 15 if kind is Codes.INT4 else points
    codes = random_codes(kind, columns, depth // PER_BYTE[kind], device=device)
    shuffled = torch.randperm(depth, device=device).int() if order else None
    return QuantisedWeight(Scheme(kind, min(group, depth)), codes, scales, points, shuffled)
