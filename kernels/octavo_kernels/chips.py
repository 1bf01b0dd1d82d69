"""A GPU, as the choice among kernels sees it."""

from __future__ import annotations

from typing import NamedTuple


class Chip(NamedTuple):
    """Major compute capability, multiprocessors, bytes of shared memory of a block; `hopper`: whether it runs the code
    for 90a in this build."""

    major: int
    multiprocessors: int
    shared_per_block: int
    hopper: bool
