"""Products of several experts, whose matrices lie one below the other, and the sum of what they make of a row."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import _cpu
from octavo_kernels.call import check, check_devices, float_type, output, rows_of
from octavo_kernels.experts.route import Assignments
from octavo_kernels.operands import DTYPES, address, rows_at
from octavo_kernels.products import quantised_cpu
from octavo_kernels.products.weights import PackedWeight


def grouped_linear(x: Tensor, weight: Tensor | PackedWeight, starts: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[A, N]`: the rows of `x[A, K]` from `starts[e]` to `starts[e + 1]` times the e-th of E parts of
    `weight[E * N, K]`, plus its part of `bias[E * N]`. Bits are those of `linear` with a part alone.

    Raises `TypeError` or `ValueError`, naming the argument, for what does not fit: parts of a packed weight are whole
    panels of 64 rows."""
    float_type("x", x)
    rows, depth = rows_of("x", x)
    experts = len(starts) - 1
    check("starts", starts, torch.int32, (None,))
    if isinstance(weight, PackedWeight):
        matrix, height = weight.codes, weight.columns
        if depth != weight.depth:
            raise ValueError(f"x must have {weight.depth} columns, not {depth}")
    else:
        check("weight", weight, x.dtype, (None, depth))
        matrix, height = weight, len(weight)
    if bias is not None:
        check("bias", bias, x.dtype, (height,))
    if check_devices({"x": x, "weight": matrix, "starts": starts, "bias": bias}).type != "cpu":
        raise ValueError("x is on a GPU; there take `experts_up` and `experts_down`")
    if height % experts:
        raise ValueError(f"weight must have rows for {experts} experts alike, not {height}")
    columns = height // experts
    out = output(None, x, (rows, columns))
    if isinstance(weight, PackedWeight):
        if columns % quantised_cpu.COLUMNS:
            raise ValueError(f"{columns} rows an expert are not whole panels of {quantised_cpu.COLUMNS}")
        packed = quantised_cpu.described(weight, columns)
        _cpu.grouped_quantised(
            DTYPES[x.dtype], rows_at(x), packed, address(bias), rows_at(out), rows, address(starts), experts
        )
    else:
        _cpu.grouped_linear(
            DTYPES[x.dtype], rows_at(x), rows_at(weight), address(bias), rows_at(out), rows, columns, depth,
            address(starts), experts,
        )  # fmt: skip
    return out


def combine(
    parts: Tensor,
    assignments: Assignments,
    out: Tensor,
    *,
    shared: Tensor | None = None,
    gates: Tensor | None = None,
    residual: Tensor | None = None,
    factor: float = 1.0,
) -> Tensor:
    """Sum over a row's experts, ascending, of weights times `parts[A, H]`; then `gates[T]` (float32; None: 1) times
    `shared[T, H]`; all that times `factor`, then `residual[T, H]`, which may be `out[T, H]`. Sums are float32. Raises
    `TypeError` or `ValueError`, naming the argument, for what does not fit: a `factor` is of a sum with a residual."""
    dtype = float_type("parts", parts)
    count, width = rows_of("parts", parts)
    rows, chosen = assignments.places.shape
    if count != rows * chosen:
        raise ValueError(f"parts must have {rows * chosen} rows, not {count}")
    for name, tensor in (("out", out), ("shared", shared), ("residual", residual)):
        if tensor is not None:
            check(name, tensor, parts.dtype, (rows, width))
    if gates is not None:
        check("gates", gates, torch.float32, (rows,))
    if factor != 1.0 and residual is None:
        raise ValueError("factor is for a sum with a residual")
    check_devices(
        {
            "parts": parts, "places": assignments.places, "out": out, "shared": shared, "gates": gates,
            "residual": residual,
        }
    )  # fmt: skip
    _cpu.combine(
        dtype, rows_at(parts), address(assignments.places), address(assignments.weights), chosen, rows_at(shared),
        address(gates), rows_at(residual), factor, rows_at(out), rows, width,
    )  # fmt: skip
    return out
