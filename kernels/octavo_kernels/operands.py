"""What products take beside tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """RMS norm of rows (arXiv 1910.07467), times `offset + weight[H]`."""

    weight: Tensor
    eps: float = 1e-6
    offset: float = 0.0
