"""Checks of operations' tensors, and the call of the module of the tensors' device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Generic, ParamSpec

import torch
from torch import Tensor

from octavo_kernels import _cpu, cuda
from octavo_kernels.operands import DTYPES

P = ParamSpec("P")


def check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    """Rows must be dense; the distance between rows is free. None in `shape` stands for any size.

    A decode step passes here hundreds of times, so the good case is decided first and without building anything. Raises
    TypeError for another dtype, ValueError for another shape or layout.
    """
    got = tensor.shape
    if tensor.dtype is dtype and (got == shape or _fits(got, shape)):
        if got and got[-1] > 1 and tensor.stride(-1) != 1:
            check_layout(name, tensor)
        return
    if tensor.dtype is not dtype:
        raise TypeError(f"{name} must be {dtype}, not {tensor.dtype}")
    wanted = ", ".join("*" if want is None else str(want) for want in shape)
    raise ValueError(f"{name} must have shape [{wanted}], not {list(got)}")


def _fits(got: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(got) == len(shape) and all(want in (None, size) for want, size in zip(shape, got, strict=True))


def check_layout(name: str, tensor: Tensor) -> None:
    """Checks that rows are dense. Raises ValueError."""
    if tensor.dim() and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(f"{name} must be contiguous in its last dimension; its strides are {tensor.stride()}")


def check_heads(name: str, tensor: Tensor) -> None:
    """Checks that heads lie side by side. Raises ValueError."""
    if tensor.shape[1] > 1 and tensor.stride(1) != tensor.shape[2]:
        raise ValueError(f"{name} must have its heads side by side; its strides are {tensor.stride()}")


def check_devices(tensors: dict[str, Tensor | None]) -> torch.device:
    """Returns the device that all tensors must share. Raises ValueError where they differ or have no kernels."""
    given = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    device = next(iter(given.values()))
    for name, other in given.items():
        if other.type not in ("cpu", "cuda"):
            raise ValueError(f"{name} is on {other}; there are kernels for the CPU and for CUDA")
        if other != device:
            raise ValueError(f"{name} is on {other}, but {next(iter(given))} is on {device}")
    return device


def float_type(name: str, tensor: Tensor) -> int:
    """The module's code of a tensor's type. Raises TypeError for one that is no float of 16 or 32 bits."""
    code = DTYPES.get(tensor.dtype)
    if code is None:
        raise TypeError(f"{name} must be float32, bfloat16 or float16, not {tensor.dtype}")
    return code


def rows_of(name: str, tensor: Tensor) -> tuple[int, int]:
    """Rows and columns of a matrix. Raises ValueError for other dimensions."""
    shape = tensor.shape
    if len(shape) != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {list(shape)}")
    rows, width = shape
    if width > 1 and tensor.stride(1) != 1:
        check_layout(name, tensor)
    return rows, width


def output(out: Tensor | None, like: Tensor, shape: tuple[int, int]) -> Tensor:
    if out is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    check("out", out, like.dtype, shape)
    return out


def run(operation: str, tensors: dict[str, Tensor | None], *arguments: object) -> None:
    """Calls the module of the tensors' device."""
    if all(tensor is None or tensor.is_cpu for tensor in tensors.values()):
        getattr(_cpu, operation)(*arguments)
    else:
        cuda.run(operation, check_devices(tensors), *arguments)


@dataclass(frozen=True, slots=True)
class Call:
    """An operation with checked arguments."""

    operation: str
    tensors: dict[str, Tensor | None]
    arguments: tuple[object, ...]
    out: Tensor

    def run(self) -> Tensor:
        run(self.operation, self.tensors, *self.arguments)
        return self.out


class Operation(Generic[P]):
    """Checks its arguments and runs. A caller that runs it in another way takes what `prepare` made of them."""

    def __init__(self, prepare: Callable[P, Call]) -> None:
        self.prepare = prepare
        update_wrapper(self, prepare)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        return self.prepare(*args, **kwargs).run()
