"""Prompts of the gated delta rule by chunks on a GPU: which steps may have some, and the room that they take.

A chunk is 64 tokens, or fewer in front of a keep and at a prompt's end. Products of its own tokens are made of all
chunks at a time, on tensor cores; only products with the state wait for the chunk before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.operands import address

CHUNK = 64
"""Tokens. A sequence of fewer is computed token after token, as decodes are."""
TILES = 72
"""Chunks that are computed at a time: 4,096 tokens, and some that end at keeps. More would take more room."""
KEY_TILE = (4 * 64 * (128 + 8)) * 2
"""Bytes of a chunk's keys and queries, in two parts each: 64 rows of 128 elements, with room for 8 more."""
HEAD_TILE = (4 * 64 * (64 + 8)) * 2 + 2 * 64 * 4
"""Bytes of a chunk's products of tokens with each other, in two matrices of two parts, and decays."""
VALUE_TILE = 128 * (64 + 4) * 4
"""Bytes of a chunk's values of a head, or of its outputs."""
ALIGNMENT = 256


def most_chunks(rows: int, sequences: int) -> int:
    """The most chunks that a step can have: keeps cut a sequence in chunks into at most twice as many as it needs."""
    whole = rows // CHUNK
    return 2 * (whole + min(sequences, whole))


def takes_chunks(device: torch.device, dtype: torch.dtype) -> bool:
    """True if prompts of this type can be computed by chunks on a device."""
    return device.type == "cuda" and dtype.itemsize == 2


def may_have_chunks(x: Tensor, sequences: int) -> bool:
    """True if a step of the rows `x` may have a sequence that is computed by chunks."""
    return takes_chunks(x.device, x.dtype) and len(x) - sequences >= CHUNK - 1


def room_bytes(rows: int, sequences: int, key_heads: int, heads: int) -> int:
    """Bytes of the room of a step's chunks, as csrc/cuda/recurrent/chunk.cu divides it."""
    most = most_chunks(rows, sequences)
    tiles = min(TILES, most)
    pieces = (
        8, 16 * most, 8 * (rows // CHUNK), 2 * heads * 128 * 128 * 4,
        tiles * key_heads * KEY_TILE, tiles * heads * HEAD_TILE, tiles * heads * VALUE_TILE,
    )  # fmt: skip
    return sum(-(-piece // ALIGNMENT) * ALIGNMENT for piece in pieces)


def room_for(x: Tensor, sequences: int, key_heads: int, heads: int) -> Tensor:
    """Memory for the chunks of a step of the rows `x`; its values are undefined."""
    size = room_bytes(len(x), sequences, key_heads, heads)
    return torch.empty(size, dtype=torch.uint8, device=x.device)


def room_at(room: Tensor | None) -> tuple[int, int, int]:
    """Address and bytes of a room, and the chunks that are computed at a time; None: none are."""
    return address(room), 0 if room is None else room.nbytes, TILES
