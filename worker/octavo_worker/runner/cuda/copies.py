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
    """Has linears keep their copies, the first ones first, as long as there is room. `room`: bytes for copies and KV
    cache together; `asked`: what the latter is to have.

    Codes and copies never take more than the weights would in 16 bits, so no KV cache is smaller for them than that of
    a model which is not quantised.
    """
    copied = [linear for linear in linears if linear.copy_bytes]
    free = max(0, room - asked) if asked else int(SHARE * room)
    left = min(free, sum(linear.copy_bytes - linear.nbytes for linear in copied))
    kept = 0
    for linear in copied:
        if linear.copy_bytes <= left:
            linear.keep_copy()
            left, kept = left - linear.copy_bytes, kept + linear.copy_bytes
    needed = sum(linear.copy_bytes for linear in copied)
    message = "large steps multiply copies in 16 bits of %d of %d MiB of the weights, and codes of the others"
    log.info(message, kept >> 20, needed >> 20)
