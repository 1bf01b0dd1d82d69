"""Buckets of limits as the scripts store them."""

from __future__ import annotations

import struct

_STORED = struct.Struct("<ddd")  # level, ms of that, ms until which refused jobs were told to wait


def bucket(level: float, at_ms: float) -> bytes:
    return _STORED.pack(level, at_ms, 0)


def level_in(stored: bytes) -> float:
    """Level when the bucket was touched last."""
    return float(_STORED.unpack(stored)[0])


def time_in(stored: bytes) -> float:
    return float(_STORED.unpack(stored)[1])
