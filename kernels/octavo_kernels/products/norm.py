"""Norms of the rows of a batch."""

from __future__ import annotations

from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.call import check, check_devices, check_heads, float_type, output, rows_of, run
from octavo_kernels.operands import RmsNorm, address, rows_at


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    out: Tensor | None = None,
    residual: Tensor | None = None,
    offset: float = 0.0,
) -> Tensor:
    """RMS norm of the rows of `x[T, H]` (arXiv 1910.07467), times `offset + weight[H]`.

    With `residual[T, H]`: residual += x in place, and the sum is what is normalised. `out` may be `x`.
    On CUDA the weight is read from before the stream's previous kernel has ended: it must be older than it.
    """
    dtype = float_type("x", x)
    rows, width = rows_of("x", x)
    check("weight", weight, x.dtype, (width,))
    if residual is not None:
        check("residual", residual, x.dtype, (rows, width))
    out = output(out, x, (rows, width))
    run(
        "rms_norm", {"x": x, "weight": weight, "residual": residual, "out": out},
        dtype, rows_at(x), rows_at(residual), weight.data_ptr(), rows_at(out), rows, width, eps, offset,
    )  # fmt: skip
    return out


def norm_heads(x: Tensor, norm: RmsNorm, out: Tensor) -> Tensor:
    """RMS norm of each head of `x[T, heads, H]` into `out[T, heads, H]`, which may be `x`; rows of both may lie apart.
    Raises `TypeError` or `ValueError`, naming the argument, for what does not fit."""
    dtype = float_type("x", x)
    check("x", x, x.dtype, (None, None, None))
    rows, heads, width = x.shape
    check("out", out, x.dtype, x.shape)
    check("norm.weight", norm.weight, x.dtype, (width,))
    for name, tensor in (("x", x), ("out", out)):
        check_heads(name, tensor)
    if check_devices({"x": x, "norm.weight": norm.weight, "out": out}).type == "cpu":
        normed = rms_norm(x.reshape(-1, width), norm.weight, norm.eps, offset=norm.offset)
        return out.copy_(normed.view(x.shape))
    cuda.run(
        "norm_heads", x.device,
        dtype, rows_at(x), norm.weight.data_ptr(), rows_at(out), rows, heads, width, norm.eps, norm.offset,
    )  # fmt: skip
    return out


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    out: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Layer norm of the rows of `x[T, H]`, times `weight[H]`, plus `bias[H]`; all else as in `rms_norm`."""
    dtype = float_type("x", x)
    rows, width = rows_of("x", x)
    check("weight", weight, x.dtype, (width,))
    if bias is not None:
        check("bias", bias, x.dtype, (width,))
    if residual is not None:
        check("residual", residual, x.dtype, (rows, width))
    out = output(out, x, (rows, width))
    run(
        "layer_norm", {"x": x, "weight": weight, "bias": bias, "residual": residual, "out": out},
        dtype, rows_at(x), rows_at(residual), weight.data_ptr(), address(bias), rows_at(out), rows, width, eps,
    )  # fmt: skip
    return out
