"""Weights of codes in 16 bits as well, where a GPU has room for them.

With few rows a product takes as long as reading its weight, and codes are a fraction of the bytes. With many it takes
as long as its operations, and turning codes into numbers comes on top.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from octavo_worker.model.layers.linear import Linear

log = logging.getLogger(__name__)

SHARE = 0.25  # of the room for a KV cache that takes what is left


def keep_copies(linears: Sequence[Linear], room: int, asked: int | None) -> None:
    """Has all of them keep their copies, or none. `room`: bytes for copies and KV cache together; `asked`: what the
    latter is to have."""
    needed = sum(linear.copy_bytes for linear in linears)
    free = max(0, room - asked) if asked else int(SHARE * room)
    if needed > free:
        message = "large steps dequantise weights each time: copies in 16 bits take %d MiB, of which %d are free"
        log.info(message, needed >> 20, free >> 20)
        return
    for linear in linears:
        linear.keep_copy()
    log.info("large steps multiply copies of the weights in 16 bits, which take %d MiB", needed >> 20)
