"""A model of transformers' code whose matrices take next to no memory: its code can be tried before weights are read.

Element `[i, j]` of a large matrix is element `i + j` of a vector of random numbers: rows and columns differ, and the
matrix needs no more room than its borders. Products with such matrices pick elements of their input instead of summing
them, so a step of the largest model takes as long as that of a tiny one. What depends on its tokens and positions does
so here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

from octavo_worker.model.library import drawn_model

LARGE = 1 << 12
"""Elements of a matrix that is worth the trouble."""
STD = 0.02
STRIDE = 7
"""Columns of an input between two that a product picks; coprime to most widths."""

PRODUCTS = ("matmul", "__matmul__", "mm", "bmm")


class Outlining(TorchFunctionMode):
    """Makes matrices thin while a model is drawn, and computes with them while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, Tensor] = {}
        self._threads = 1

    def __enter__(self) -> Self:
        """Takes one thread: there is too little to do for others to wake up for."""
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_num_threads(self._threads)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "empty":
            return self._empty(func, *args, **named)
        if name == "linear" and self._is_thin(args[1] if len(args) > 1 else named.get("weight")):
            return _picked(*args, **named)
        if name in PRODUCTS and len(args) == 2 and self._is_thin(args[1]):
            return _picked(args[0], args[1].mT)
        if (name.endswith("_") and not name.startswith("_")) or name == "__setitem__":
            target = args[0] if args else named.get("tensor")  # of torch.nn.init
            if self._is_thin(target):
                return target
        return func(*args, **named)

    def _empty(self, func: Callable[..., Any], *args: Any, **named: Any) -> Any:
        with torch.device("meta"):
            shape = func(*args, **(named | {"device": "meta"}))
        device = named.get("device")
        if shape.dim() < 2 or shape.numel() < LARGE or not shape.is_floating_point() or str(device or "cpu") != "cpu":
            return func(*args, **named)
        thin = thin_matrix(tuple(shape.shape), shape.dtype)
        self._kept[thin.untyped_storage().data_ptr()] = thin
        return thin

    def _is_thin(self, value: Any) -> bool:
        return isinstance(value, Tensor) and not value.is_meta and value.untyped_storage().data_ptr() in self._kept


def outlined(config: PreTrainedConfig, outlining: Outlining, **ways: Any) -> PreTrainedModel:
    """The model that `config` describes, on the CPU, the same at every call. Raises as its code does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with torch.device("cpu"), outlining:
            model: PreTrainedModel = drawn_model(config, **ways).eval()
            return model


def thin_matrix(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of that shape, which shares its elements."""
    elements = torch.randn(sum(shape) - len(shape) + 1).mul_(STD).to(dtype)
    return elements.as_strided(shape, (1,) * len(shape))


def _picked(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product with a matrix `[columns, depth]`, or with several."""
    depth = input.shape[-1]
    if depth != weight.shape[-1]:
        raise RuntimeError(f"a matrix of shape {tuple(weight.shape)} does not take inputs of {depth}")
    out = input[..., (torch.arange(weight.shape[-2]) * STRIDE + 3) % depth]
    if out.dim() < weight.dim():
        out = out.expand(*weight.shape[:-2], *out.shape[-2:])
    return out if bias is None else out + bias
