"""Prompts of recurrent layers by chunks on a GPU: which steps may have some, and the room that they take.

A chunk is 64 tokens, or fewer in front of a keep and at a prompt's end. Products of its own tokens are made of all
chunks at a time, or beside others, on tensor cores; only products with the state wait for the chunk before.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from octavo_kernels.operands import address

CHUNK = 64
"""Tokens. A sequence of fewer is computed token after token, as decodes are."""
DELTA_TILES = 66
"""Chunks computed at a time: two prompts of 2,048 tokens with a keep, four rounds of 16 heads on an H200."""
SSM_BYTES = 256 << 20
"""Room for chunks of Mamba2 that are computed at a time: those of some sequences, whose heads are blocks enough."""
ALIGNMENT = 256


class ChunkTiles(NamedTuple):
    """The tiles that a layer's chunks are made into: bytes of each kind that one chunk has, bytes of the layer's states
    on their way between parts of a step, and the most chunks that a part has."""

    kinds: tuple[int, ...]
    carry: int
    most: int


def delta_tiles(key_heads: int, heads: int) -> ChunkTiles:
    """Tiles of the gated delta rule (csrc/cuda/recurrent/delta_chunk.cuh): keys and queries in two parts each, with
    rows of 8 elements more than they need; products of tokens with each other, likewise, and decays; values."""
    keys, triangles, values = 4 * 64 * (128 + 8) * 2, 4 * 64 * (64 + 8) * 2 + 2 * 64 * 4, 128 * (64 + 4) * 4
    return ChunkTiles((key_heads * keys, heads * triangles, heads * values), 2 * heads * 128 * 128 * 4, DELTA_TILES)


def ssm_tiles(groups: int, heads: int, size: int, head_dim: int) -> ChunkTiles:
    """Tiles of Mamba2 (csrc/cuda/recurrent/ssm_chunk.cuh): of each group B and C in two parts each, and the lower
    triangle, in blocks of 16 tokens, of the products of these."""
    tile = groups * (4 * 64 * size * 2 + 16 * 16 * (1 + 2 + 3 + 4) * 4)
    return ChunkTiles((tile,), 2 * heads * size * head_dim * 4, max(1, SSM_BYTES // tile))


def most_chunks(rows: int, sequences: int) -> int:
    """The most chunks that a step can have: keeps cut a sequence in chunks into at most twice as many as it needs."""
    whole = rows // CHUNK
    return 2 * (whole + min(sequences, whole))


def takes_chunks(device: torch.device, dtype: torch.dtype) -> bool:
    """True if prompts of this type can be computed by chunks on a device."""
    return device.type == "cuda" and dtype.itemsize == 2


def takes_head(key_dim: int, value_dim: int) -> bool:
    """True if heads of the delta rule of this size have kernels for chunks."""
    return key_dim == value_dim == 128


def room_bytes(tiles: ChunkTiles, rows: int, sequences: int) -> int:
    """Bytes of the room of a step's chunks, as csrc/cuda/recurrent/chunk_plan.cuh and what plans with it divide it."""
    most = most_chunks(rows, sequences)
    at_once = min(tiles.most, most)
    pieces = (8, 16 * most, 8 * (rows // CHUNK), tiles.carry, *(at_once * kind for kind in tiles.kinds))
    return sum(-(-piece // ALIGNMENT) * ALIGNMENT for piece in pieces)


def room_for(tiles: ChunkTiles, x: Tensor, sequences: int) -> Tensor | None:
    """Memory, of undefined values, for the chunks of a step of the rows `x`; None if it can have none."""
    if not takes_chunks(x.device, x.dtype) or len(x) - sequences < CHUNK - 1:
        return None
    return torch.empty(room_bytes(tiles, len(x), sequences), dtype=torch.uint8, device=x.device)


def room_at(tiles: ChunkTiles, room: Tensor | None) -> tuple[int, int, int]:
    """Address and bytes of a room, and the chunks that are computed at a time; None: none are."""
    return address(room), 0 if room is None else room.nbytes, tiles.most
