"""Tensors as the compiled modules take them, and the operands of a product as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from octavo_kernels.weights import PackedWeight

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
W = TypeVar("W", bound=Tensor | PackedWeight, covariant=True)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """RMS norm of rows (arXiv 1910.07467), times `offset + weight[H]`."""

    weight: Tensor
    eps: float = 1e-6
    offset: float = 0.0

    def operand(self) -> tuple[int, float, float]:
        return self.weight.data_ptr(), self.eps, self.offset


class Product(NamedTuple, Generic[W]):
    """`x[T, K] @ weight[N, K].T`, plus `bias[N]`, plus `residual[T, N]` (which may be `out`), into `out[T, N]`, which
    is made if there is none. All but a packed weight has the dtype of `x`.

    With `norm`, x is `rms_norm(x, norm)`, bit for bit; on CUDA, with one row, in the same launch. `normed[T, K]` is
    where those rows go if they have to be stored.
    `uniform` (Hopper only): a row's bits depend neither on the other rows nor on their number.
    `counter[1]`, an int32 zero that one stream at a time may use, makes large products of a few rows on CUDA faster
    and changes no bit: multiprocessors that are done draw the next rows of the weights. It is zero again afterwards.
    `copy[N, K]`, what `copy_of` gives, is multiplied in a packed weight's place where that is faster, unless `uniform`.

    A tuple, which is made in a third of the time of a frozen dataclass: a step makes hundreds.
    """

    x: Tensor
    weight: W
    bias: Tensor | None = None
    out: Tensor | None = None
    residual: Tensor | None = None
    norm: RmsNorm | None = None
    normed: Tensor | None = None
    uniform: bool = False
    counter: Tensor | None = None
    copy: Tensor | None = None


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def rows_at(tensor: Tensor | None) -> tuple[int, int]:
    """Address of the first row, and elements from one row to the next."""
    return (0, 0) if tensor is None else (tensor.data_ptr(), tensor.stride(0))
