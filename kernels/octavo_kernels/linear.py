"""Matrix products of the rows of a batch with weights."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.activation import Gate, act_and_mul, code_of
from octavo_kernels.call import check, check_devices, float_type, output, rows_of, run
from octavo_kernels.norm import check_norm, normed_rows
from octavo_kernels.operands import RmsNorm, address, rows_at


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    residual: Tensor | None = None,
    norm: RmsNorm | None = None,
    normed: Tensor | None = None,
    uniform: bool = False,
    counter: Tensor | None = None,
) -> Tensor:
    """`x[T, K] @ weight[N, K].T`, plus `bias[N]`, plus `residual[T, N]` (which may be `out`), summed in float32.

    Weights are taken in checkpoint order. On CUDA, with up to 64 rows, they are read from before the
    stream's previous kernel has ended: they must be older than it; `uniform` products (Hopper only) do so with
    any number of rows, and a row's bits depend neither on the others nor on their number.
    With `norm`, x is `rms_norm(x, norm)`, bit for bit; on CUDA, with one row, in the same launch. `normed[T, K]` is
    where those rows go if they have to be stored.
    `counter[1]`, an int32 zero that one stream at a time may use, makes large products of a few rows on CUDA faster
    and changes no bit: multiprocessors that are done draw the next rows of the weights. It is zero again afterwards.
    """
    dtype = float_type("x", x)
    rows, depth = rows_of("x", x)
    check("weight", weight, x.dtype, (None, depth))
    columns = weight.shape[0]
    if bias is not None:
        check("bias", bias, x.dtype, (columns,))
    if residual is not None:
        check("residual", residual, x.dtype, (rows, columns))
    check_norm(norm, x)
    _check_counter(counter)
    out = output(out, x, (rows, columns))
    tensors = {"x": x, "weight": weight, "bias": bias, "residual": residual, "out": out, "counter": counter}
    if x.is_cuda:
        check_devices(tensors)
        if norm is not None:
            if not uniform and cuda.launch_linear(x, weight, bias, residual, out, norm=norm, counter=counter):
                return out
            x = normed_rows(x, norm, normed)
        if uniform:
            cuda.linear_uniform(x, weight, bias, residual, out)
        else:
            cuda.linear(x, weight, bias, residual, out, counter)
        return out
    if norm is not None:
        x = normed_rows(x, norm, normed)
    run(
        "linear",
        tensors,
        dtype,
        rows_at(x),
        rows_at(weight),
        address(bias),
        rows_at(residual),
        rows_at(out),
        rows,
        columns,
        depth,
    )
    return out


def gated_linear(
    x: Tensor,
    weight: Tensor,
    kind: Gate,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    scratch: Tensor | None = None,
    norm: RmsNorm | None = None,
    normed: Tensor | None = None,
    uniform: bool = False,
    counter: Tensor | None = None,
) -> Tensor:
    """`act_and_mul(linear(x, weight, bias), kind)`, `[T, I]`, for `weight[2I, K]` whose first half is the gate.

    If not `uniform`, on CUDA one launch with the same roundings where `linear` is ours, and on Hopper with more rows
    where that is faster: there, too, weights must be older than the stream's previous kernel. `scratch[T, 2I]` is where
    the product goes if it has to be stored. `norm`, `normed` and `counter` as in `linear`. Raises ValueError for an odd
    number of rows.
    """
    float_type("x", x)
    rows, depth = rows_of("x", x)
    check("weight", weight, x.dtype, (None, depth))
    columns = weight.shape[0]
    if columns % 2:
        raise ValueError(f"weight must have an even number of rows, not {columns}")
    if bias is not None:
        check("bias", bias, x.dtype, (columns,))
    check_norm(norm, x)
    _check_counter(counter)
    out = output(out, x, (rows, columns // 2))
    activation = code_of(kind)
    tensors = {"x": x, "weight": weight, "bias": bias, "out": out, "counter": counter}
    ours = check_devices(tensors).type == "cuda" and not uniform
    if ours and cuda.launch_linear(x, weight, bias, None, out, activation, norm, counter):
        return out
    if norm is not None:
        x = normed_rows(x, norm, normed)
        if ours and cuda.launch_linear(x, weight, bias, None, out, activation, counter=counter):
            return out
    return act_and_mul(linear(x, weight, bias, out=scratch, uniform=uniform, counter=counter), kind, out=out)


def _check_counter(counter: Tensor | None) -> None:
    if counter is not None:
        check("counter", counter, torch.int32, (1,))
