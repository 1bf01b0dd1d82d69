"""Columns that were not quantised in their order, and scales that lie otherwise than in rows of groups."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.formats.fields import pack, unpack
from octavo_worker.model.errors import CheckpointError

ROWS = 1024  # of which there are copies while they are turned round


def sorted_by_group(name: str, groups: Tensor, size: int) -> Tensor | None:
    """The columns of a matrix sorted so that those of a group of `size` lie side by side, int32 `[depth]`; None: they
    do already. `groups[depth]` is the tensor `name`: the group of each column. Raises `CheckpointError` where groups
    are of other sizes."""
    depth = len(groups)
    wanted = torch.arange(depth, device=groups.device) // size
    if torch.equal(groups, wanted):
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order], wanted):
        raise CheckpointError(f"tensor {name!r} does not part {depth} columns into groups of {size}.")
    return order.to(torch.int32)


def ordered(codes: Tensor, order: Tensor | None) -> Tensor:
    """`codes[rows, depth]`, int8 or two a byte, with their columns in that order. Writes over `codes`, a few rows at a
    time."""
    if order is not None:
        for rows in codes.split(ROWS):
            rows.copy_(rows[:, order] if codes.dtype is torch.int8 else pack(unpack(rows, 4)[:, order]))
    return codes
