"""Tensors and norms as the compiled modules take them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """RMS norm of rows (arXiv 1910.07467), times `offset + weight[H]`."""

    weight: Tensor
    eps: float = 1e-6
    offset: float = 0.0


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def rows_at(tensor: Tensor | None) -> tuple[int, int]:
    """Address of the first row, and elements from one row to the next."""
    return (0, 0) if tensor is None else (tensor.data_ptr(), tensor.stride(0))


def norm_at(norm: RmsNorm | None) -> tuple[int, float, float]:
    return (0, 0.0, 0.0) if norm is None else (norm.weight.data_ptr(), norm.eps, norm.offset)
