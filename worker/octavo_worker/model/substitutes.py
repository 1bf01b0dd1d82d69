"""Modules of transformers' models that our kernels replace: linear layers, GPT-2's Conv1D,
layer norms, and RMS norms.

RMS norms have many class names; they are recognised by their results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from octavo_kernels import ops
from octavo_worker.model.layers.linear import Dense, Linear
from octavo_worker.model.layers.norm import Input

WIDTH_MULTIPLE = 8
MOST_WIDTH = 16_384


class Projection(nn.Module):
    """A `Linear` in the place of an `nn.Linear`, whose attributes other modules may read."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = like.weight, like.bias
        self.in_features, self.out_features = like.in_features, like.out_features
        self.linear = Dense(like.weight, like.bias)

    def forward(self, x: Tensor) -> Tensor:
        return _product(x, self.linear, self.out_features)


class RowByRow(TorchFunctionMode):
    """Makes rows independent of their number on a CPU, where torch rounds differently for different numbers of rows.

    Products with matrices that are no module (routers, experts) go to our kernels. Those of small matrices, and
    vectorised functions, which differ by a last bit at the end of each thread's part of a tensor, are computed in
    float64.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named, name = kwargs or {}, getattr(func, "__name__", "")
        if name not in _NAMES or not args or "out" in named or not _is_float(args[0], name):
            return func(*args, **named)
        if name == "linear":
            return _linear(*args, **named)
        if name in _MATRIX_PRODUCTS and not named:
            return _matmul(func, *args)
        if name in _SUMS_OF_PRODUCTS and not named:
            return args[0] + _matmul(torch.matmul, *args[1:])
        dtype = torch.promote_types(*(x.dtype for x in _tensors(args)[:2])) if name == "einsum" else args[0].dtype
        return func(*_doubled(args), **named).to(dtype)


_VECTORISED = frozenset(
    ("silu", "gelu", "sigmoid", "tanh", "exp", "softplus", "cos", "sin", "erf", "expm1", "log", "log1p", "logsigmoid")
) | {"mish", "elu", "pow", "__pow__", "__rpow__"}
_MATRIX_PRODUCTS = frozenset(("matmul", "__matmul__", "mm", "bmm"))
_SUMS_OF_PRODUCTS = frozenset(("addmm", "baddbmm"))
_NAMES = _VECTORISED | _MATRIX_PRODUCTS | _SUMS_OF_PRODUCTS | {"linear", "einsum"}
_SMALL = 4096  # elements of a matrix: one of several is rather converted than multiplied by itself


def _is_float(first: Any, name: str) -> bool:
    return name == "einsum" or (isinstance(first, Tensor) and first.is_floating_point())


def _tensors(args: Iterable[Any]) -> list[Tensor]:
    flat = [x for arg in args for x in (arg if isinstance(arg, list | tuple) else [arg])]
    return [x for x in flat if isinstance(x, Tensor)]


def _doubled(args: Any) -> list[Any]:
    return [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _product(x, Dense(weight.contiguous(), bias), len(weight))


def _matmul(func: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
    """A matrix that lies `[depth, columns]` in memory is turned round for the product."""
    if right.dim() == 2:
        return _product(left, Dense(right.mT.contiguous()), right.shape[1])
    if right.dim() == left.dim() == 3 and len(left) == len(right) and right[0].numel() > _SMALL:
        return torch.stack([_matmul(func, rows, matrix) for rows, matrix in zip(left, right, strict=True)])
    return func(left.double(), right.double()).to(left.dtype)


def _product(x: Tensor, linear: Linear, columns: int) -> Tensor:
    if not x.numel():  # an expert without tokens
        return x.new_empty(*x.shape[:-1], columns)
    return linear.apply(Input(x.reshape(-1, x.shape[-1]))).view(*x.shape[:-1], columns)


class LayerNorm(nn.Module):
    """An `nn.LayerNorm` over the last dimension with its own weights."""

    def __init__(self, like: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = like.weight, like.bias, like.eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x.reshape(-1, x.shape[-1]), self.weight, self.bias, self.eps).view_as(x)


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * (offset + weight)` in one launch instead of six."""

    def __init__(self, weight: nn.Parameter, eps: float, offset: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon, self.offset = eps, offset

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        return ops.rms_norm(rows, self.weight, self.variance_epsilon, offset=self.offset).view_as(x)


@torch.inference_mode()
def substitute(model: nn.Module) -> None:
    """Replaces every module for which we have an equivalent. Experts' matrices that transformers keeps as
    `[inputs, outputs]` are transposed in memory; their shape stays."""
    for parent in list(model.modules()):
        if getattr(parent, "is_transposed", False):
            for matrices in (p for p in parent.parameters(recurse=False) if p.dim() == 3):
                matrices.data = matrices.data.mT.contiguous().mT
        for name, child in list(parent.named_children()):
            ours = _ours(child)
            if ours is not None:
                setattr(parent, name, ours)


def _ours(module: nn.Module) -> nn.Module | None:
    if type(module) is nn.Linear:
        return Projection(module)
    if type(module).__name__ == "Conv1D":
        return Projection(_turned(module))
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() != 1:
        return None
    if weight.numel() % WIDTH_MULTIPLE or weight.numel() > MOST_WIDTH:
        return None
    if type(module) is nn.LayerNorm:
        return LayerNorm(module)
    return _rms_norm(module, weight) if type(module).__name__.endswith("RMSNorm") else None


def _turned(conv: nn.Module) -> nn.Linear:
    """The linear layer that is GPT-2's Conv1D, whose matrix lies `[inputs, outputs]`."""
    weight = conv.weight
    assert isinstance(weight, Tensor)
    linear = nn.Linear(weight.shape[0], weight.shape[1], device="meta")
    linear.weight, linear.bias = nn.Parameter(weight.T.contiguous(), requires_grad=False), conv.bias  # type: ignore[assignment]
    return linear


def _rms_norm(module: nn.Module, weight: nn.Parameter) -> RMSNorm | None:
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return eps and next((ours for offset in (0.0, 1.0) if _agree(module, ours := RMSNorm(weight, eps, offset))), None)


def _agree(theirs: nn.Module, ours: RMSNorm) -> bool:
    """On rows of ordinary size, and on rows so small that eps matters."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, ours.weight.numel(), generator=generator) * torch.tensor([[1.0], [1e-3]])
    x = rows.to(ours.weight)[None]
    wanted = theirs(x)
    return wanted.shape == x.shape and torch.allclose(ours(x).float(), wanted.float(), rtol=2e-2, atol=1e-5)
