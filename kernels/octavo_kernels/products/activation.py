"""Activations of the rows of a batch."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.call import check, check_devices, check_heads, float_type, output, rows_of, run
from octavo_kernels.operands import rows_at

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "gelu_quick": 4}
"""Codes of the modules; "gelu_quick", x * sigmoid(1.702 x), is the CPU's alone."""

Gate = Literal["silu", "gelu", "gelu_tanh", "gelu_quick"]
HeadGate = Literal["sigmoid", "softplus"]
Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_quick", "relu"]


def act_and_mul(x: Tensor, kind: Gate, out: Tensor | None = None) -> Tensor:
    """`x[T, 2I]`: the activation of the first half (the gate) times the second half, `[T, I]`. Raises ValueError for an
    odd width."""
    dtype = float_type("x", x)
    rows, width = rows_of("x", x)
    if width % 2:
        raise ValueError(f"x must have an even number of columns, not {width}")
    out = output(out, x, (rows, width // 2))
    _check_device(x, kind)
    run(
        "activation", {"x": x, "out": out},
        dtype, code_of(kind), True, rows_at(x), rows_at(out), rows, width // 2,
    )  # fmt: skip
    return out


def act(x: Tensor, kind: Activation, out: Tensor | None = None) -> Tensor:
    """The activation of `x[T, I]`; `out` may be `x`."""
    dtype = float_type("x", x)
    rows, width = rows_of("x", x)
    out = output(out, x, (rows, width))
    _check_device(x, kind)
    run(
        "activation", {"x": x, "out": out},
        dtype, code_of(kind), False, rows_at(x), rows_at(out), rows, width,
    )  # fmt: skip
    return out


def gate_heads(x: Tensor, logits: Tensor, kind: HeadGate) -> None:
    """On CUDA: multiplies `x[T, heads, head_dim]`, in place, by an activation of `logits`, in float32: of each head, if
    they are `[T, heads]`, or of each value, `[T, heads * head_dim]`. Raises `TypeError` or `ValueError`, naming the
    argument, for what does not fit."""
    dtype = float_type("x", x)
    check("x", x, x.dtype, (None, None, None))
    check_heads("x", x)
    rows, heads, head_dim = x.shape
    check("logits", logits, x.dtype, (rows, None))
    by_head = logits.shape[1] == heads
    if not by_head and logits.shape[1] != heads * head_dim:
        raise ValueError(f"logits must have a column for each of {heads} heads, or {head_dim}, not {logits.shape[1]}")
    cuda.run(
        "head_gate", check_devices({"x": x, "logits": logits}),
        dtype, kind == "softplus", rows_at(x), rows_at(logits), by_head, rows, heads, head_dim,
    )  # fmt: skip


def _check_device(x: Tensor, kind: str) -> None:
    if kind == "gelu_quick" and not x.is_cpu:
        raise ValueError(f"x is on {x.device}; gelu_quick has a kernel for the CPU only")


def code_of(kind: str) -> int:
    """The module's code of an activation. Raises ValueError for an unknown one."""
    code = ACTIVATIONS.get(kind)
    if code is None:
        raise ValueError(f"kind must be one of {', '.join(ACTIVATIONS)}, not {kind!r}")
    return code
