"""Writes tensors of quantised checkpoints by the formulas of their formats, one value at a time.

Slow, plain and apart from what reads them. `q[K][O]`-like arguments are integer tensors `[rows, depth]` as the format
counts them (unsigned where it packs), `zeros[rows, groups]` likewise, `scales[rows, groups]` of any float type.
"""

from __future__ import annotations

import torch
from torch import Tensor

AWQ_NIBBLES = [0, 2, 4, 6, 1, 3, 5, 7]
"""The column that each nibble of a word holds, from the lowest."""


def words(fields: Tensor, bits: int, places: list[int] | None = None) -> Tensor:
    """Integers `[R, n]` as int32 words `[R, n * bits / 32]`, or as many as it takes: lowest bits first."""
    a_word = 32 // bits
    rows = []
    for row in fields.tolist():
        row = row + [0] * (-len(row) % a_word)
        made = []
        for at in range(0, len(row), a_word):
            chunk = row[at : at + a_word]
            chunk = [chunk[place] for place in places] if places else chunk
            made.append(sum(value << (bits * index) for index, value in enumerate(chunk)))
        rows.append(made)
    return int32(rows)


def int32(rows: list[list[int]]) -> Tensor:
    return torch.tensor([[(word + (1 << 31)) % (1 << 32) - (1 << 31) for word in row] for row in rows]).to(torch.int32)


def gptq(q: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor | None, bits: int, version: int) -> dict[str, Tensor]:
    packed = words(zeros.T, bits)
    if version == 1:
        ones = sum(1 << at for at in range(0, 32, bits))
        packed = int32([[word - ones for word in row] for row in packed.tolist()])
    made = {
        "qweight": words(q, bits).T.contiguous(),
        "qzeros": packed,
        "scales": scales.T.contiguous(),
    }
    return made if groups is None else made | {"g_idx": groups.to(torch.int32)}


def awq(q: Tensor, zeros: Tensor, scales: Tensor) -> dict[str, Tensor]:
    return {
        "qweight": words(q.T, 4, AWQ_NIBBLES),
        "qzeros": words(zeros.T, 4, AWQ_NIBBLES),
        "scales": scales.T.contiguous(),
    }


def pack_quantized(
    q: Tensor, zeros: Tensor | None, scales: Tensor, groups: Tensor | None, bits: int
) -> dict[str, Tensor]:
    made = {
        "weight_packed": words(q, bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor(q.shape),
    }
    if zeros is not None:
        made["weight_zero_point"] = words(zeros.T, bits).T.contiguous()
    return made if groups is None else made | {"weight_g_idx": groups.to(torch.int32)}


def four_bit_floats(codes: Tensor, scales: Tensor, global_scale: float | None) -> dict[str, Tensor]:
    made = {"weight_packed": (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8), "weight_scale": scales}
    return made if global_scale is None else made | {"weight_global_scale": torch.tensor([global_scale])}
