"""Layers of Mamba2."""

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


def ssm_step(
    x: Tensor,
    states: LayerStates,
    moves: Moves,
    convolution: Convolution,
    norm: GatedNorm,
    *,
    groups: int,
    rates: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    chunked: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """`[T, H * P]`: a layer of Mamba2 (arXiv 2405.21060, section 7) between its products.

    `x[T, 2 * H * P + 2 * G * N + H]` is `z | x | B | C | dt` of a row, with H heads of P values and G `groups` of N;
    `states.matrices[slots, H, N, P]` (transposed against the paper's). `x | B | C` go through the convolution and SiLU;
    head h takes B and C of group `h // (H / G)`. With `dt' = softplus(dt + dt_bias)`, kept within `dt_limit`, and
    `decay = exp(rates * dt')` (`rates[H]` is `-exp(A_log)`, `dt_bias[H]`, `skip[H]` is D; float32) a token does, for a
    head's matrix S:

        S = decay * S + B (dt' * x)^T;   y = S^T C + skip * x

    and `norm` over groups of y, with z as its gate, is the result. All of it is float32.

    `chunked`: a GPU may compute a sequence of 64 rows or more by chunks (csrc/cuda/recurrent/ssm_chunk.cu), a factor
    of a product in two parts of bfloat16: many times faster, with last bits that depend on the cut into steps.

    Raises `TypeError` or `ValueError`, naming the argument, for what does not fit.
    """
    if states.matrices is None:
        raise ValueError("Mamba2 needs states.matrices")
    _, heads, size, head_dim = states.matrices.shape
    inner, channels = heads * head_dim, heads * head_dim + 2 * groups * size
    tensors, common = checked(x, inner + channels + heads, channels, states, moves, convolution)
    if heads % groups:
        raise ValueError(f"{heads} heads cannot share {groups} groups evenly")
    check_slots("matrices", states.matrices, torch.float32, (heads, size, head_dim))
    check_head_vectors({"rates": rates, "dt_bias": dt_bias, "skip": skip}, heads)
    check_norm(norm, inner)
    out = output(out, x, (len(x), inner))
    tensors |= {
        "matrices": states.matrices, "norm": norm.weight, "rates": rates, "dt_bias": dt_bias, "skip": skip, "out": out,
    }  # fmt: skip
    device, sequences = check_devices(tensors), len(moves.read)
    rooms: list[object] = []
    if device.type != "cpu":
        # A GPU's norm is a launch of its own, and finds the recurrence's outputs there.
        made = torch.empty(len(x), inner, dtype=torch.float32, device=device)
        tiles = chunks.ssm_tiles(groups, heads, size, head_dim)
        room = chunks.room_for(tiles, x, sequences) if chunked else None
        rooms = [address(made), chunks.room_at(tiles, room)]
    run(
        "ssm_step", tensors, *common, matrices_at(states.matrices), norm_at(norm), rows_at(out),
        (groups, heads, size, head_dim), address(rates), address(dt_bias), address(skip), dt_limit,
        *rooms,
    )  # fmt: skip
    return out
