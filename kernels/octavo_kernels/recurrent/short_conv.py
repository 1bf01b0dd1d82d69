"""Layers of short convolutions."""

from __future__ import annotations

from torch import Tensor

from octavo_kernels.call import check_devices, output, run
from octavo_kernels.operands import rows_at
from octavo_kernels.recurrent.operands import Convolution, LayerStates, Moves, checked


def conv_step(
    x: Tensor, states: LayerStates, moves: Moves, convolution: Convolution, *, out: Tensor | None = None
) -> Tensor:
    """`[T, channels]`: a gated short convolution (LFM2, arXiv 2511.23404, section 2) between its products.

    `x[T, 3 * channels]` is `B | C | x` of a row. `B * x`, rounded to the type of x, goes through the convolution, whose
    columns hold the rounded products; C times it is the result.

    Raises `TypeError` or `ValueError`, naming the argument, for what does not fit.
    """
    channels = convolution.weight.shape[-1]
    tensors, common = checked(x, 3 * channels, channels, states, moves, convolution)
    out = output(out, x, (len(x), channels))
    tensors["out"] = out
    check_devices(tensors)
    run("conv_step", tensors, *common, rows_at(out))
    return out
