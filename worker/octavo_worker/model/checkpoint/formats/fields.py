"""Bit fields of packed tensors: the first in the lowest bits."""

from __future__ import annotations

import torch
from torch import Tensor


def unpack(words: Tensor, bits: int) -> Tensor:
    """The fields of `bits` (4 or 8) of each row of int32 or uint8 words `[R, n]`: uint8 `[R, fields]`."""
    octets = words.contiguous().view(torch.uint8)
    return octets if bits == 8 else torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def pack(nibbles: Tensor) -> Tensor:
    """Two a byte: uint8 `[R, n]` to `[R, n / 2]`."""
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4


def signed(octets: Tensor) -> Tensor:
    """Unsigned integers less 128: uint8 to int8. Writes over `octets`."""
    return octets.bitwise_xor_(128).view(torch.int8)
