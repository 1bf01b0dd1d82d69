"""Layers of the gated delta rule."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.call import check_devices, output, run
from octavo_kernels.operands import address, rows_at
from octavo_kernels.recurrent import chunks
from octavo_kernels.recurrent.operands import (
    Convolution,
    GatedNorm,
    LayerStates,
    Moves,
    check_head_vectors,
    check_norm,
    check_slots,
    checked,
    matrices_at,
    norm_at,
)


def delta_step(
    x: Tensor,
    states: LayerStates,
    moves: Moves,
    convolution: Convolution,
    norm: GatedNorm,
    *,
    key_heads: int,
    rates: Tensor,
    dt_bias: Tensor,
    beta_scale: float = 1.0,
    chunked: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """`[T, H * V]`: a layer of the gated delta rule (arXiv 2412.06464, section 3) between its products.

    `x[T, 2 * G * K + 2 * H * V + 2 * H]` is `q | k | v | z | b | a` of a row, with G `key_heads` of K values and H
    heads of V; `states.matrices[slots, H, K, V]`. `q | k | v` go through the convolution and SiLU; q and k of each key
    head are divided by their length (`rsqrt(sum of squares + 1e-6)`), q is multiplied by `K ** -0.5`; head h takes key
    head `h // (H / G)`. With `beta = beta_scale * sigmoid(b)` and `decay = exp(rates * softplus(a + dt_bias))`
    (`rates[H]` is `-exp(A_log)`, `dt_bias[H]`; float32) a token does, for a head's matrix S:

        d = beta * (v - decay * S^T k);   o = decay * S^T q + (k . q) * d;   S = decay * S + k d^T

    and `norm`, over each head or any other group of `o`, with z as its gate, is the result. All of it is float32.

    `chunked`: a GPU may compute a sequence of 64 rows or more by products of chunks, if K and V are 128
    (csrc/cuda/recurrent/delta_chunk.cu), each float32 factor in two parts of bfloat16. That is many times faster, and
    depends in its last bits on how a sequence's tokens are cut into steps.

    Raises `TypeError` or `ValueError`, naming the argument, for what does not fit.
    """
    if states.matrices is None:
        raise ValueError("the gated delta rule needs states.matrices")
    _, heads, key_dim, value_dim = states.matrices.shape
    channels, values = 2 * key_heads * key_dim + heads * value_dim, heads * value_dim
    tensors, common = checked(x, channels + values + 2 * heads, channels, states, moves, convolution)
    if heads % key_heads:
        raise ValueError(f"{heads} heads cannot share {key_heads} key heads evenly")
    check_slots("matrices", states.matrices, torch.float32, (heads, key_dim, value_dim))
    check_head_vectors({"rates": rates, "dt_bias": dt_bias}, heads)
    check_norm(norm, values)
    out = output(out, x, (len(x), values))
    tensors |= {"matrices": states.matrices, "norm": norm.weight, "rates": rates, "dt_bias": dt_bias, "out": out}
    device, sequences = check_devices(tensors), len(moves.read)
    tiles = chunks.delta_tiles(key_heads, heads)
    room = chunks.room_for(tiles, x, sequences) if chunked and chunks.takes_head(key_dim, value_dim) else None
    rooms = [] if device.type == "cpu" else [chunks.room_at(tiles, room)]
    run(
        "delta_step", tensors, *common, matrices_at(states.matrices), norm_at(norm), rows_at(out),
        (key_heads, heads, key_dim, value_dim), address(rates), address(dt_bias), beta_scale, *rooms,
    )  # fmt: skip
    return out
