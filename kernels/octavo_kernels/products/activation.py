"""Activations of the rows of a batch."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from octavo_kernels.call import float_type, output, rows_of, run
from octavo_kernels.operands import rows_at

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "gelu_quick": 4}
"""Codes of the modules; "gelu_quick", x * sigmoid(1.702 x), is the CPU's alone."""

Gate = Literal["silu", "gelu", "gelu_tanh", "gelu_quick"]
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


def _check_device(x: Tensor, kind: str) -> None:
    if kind == "gelu_quick" and not x.is_cpu:
        raise ValueError(f"x is on {x.device}; gelu_quick has a kernel for the CPU only")


def code_of(kind: str) -> int:
    """The module's code of an activation. Raises ValueError for an unknown one."""
    code = ACTIVATIONS.get(kind)
    if code is None:
        raise ValueError(f"kind must be one of {', '.join(ACTIVATIONS)}, not {kind!r}")
    return code
