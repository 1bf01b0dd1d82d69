"""What a rank holds of a quantised matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels.weights import PER_BYTE, QuantisedWeight
from octavo_worker.model.checkpoint.source import Cut
from octavo_worker.model.errors import UnsupportedModel

FEWER = "give fewer ranks (--tensor-parallel), or another checkpoint."


def cut_weight(name: str, weight: QuantisedWeight, cut: Cut | None) -> QuantisedWeight:
    """The rows and columns of `cut`, as they are in the whole matrix: its codes, scales and zero points. Raises
    `UnsupportedModel` for columns that do not begin and end with a group."""
    if cut is None:
        return weight
    scheme, depth, columns = weight.scheme, weight.depth, cut.columns
    rows = torch.cat([torch.arange(some.start, some.stop, device=weight.codes.device) for some in cut.rows])
    codes, scales, zeros = weight.codes.view(torch.uint8), weight.scales, weight.zeros
    if not cut.has_whole_rows:
        if weight.order is not None:
            raise UnsupportedModel(
                f"{name} has its columns in an order of their own (act-order, desc_act), in which no rank finds whole "
                f"groups; {FEWER}"
            )
        group, per_byte = min(scheme.group, depth), PER_BYTE[scheme.codes]
        is_whole = columns.stop % group == 0 or columns.stop == depth
        if group < depth and not (columns.start % group == 0 and is_whole):
            raise UnsupportedModel(
                f"{name} has groups of {group} columns, which {depth // len(columns)} ranks would cut at column "
                f"{columns.start or columns.stop} of {depth}; {FEWER}"
            )
        if columns.start % per_byte or columns.stop % per_byte:
            raise UnsupportedModel(f"{name} has {per_byte} codes a byte, and {depth} columns would cut one; {FEWER}")
        codes = codes[:, columns.start // per_byte : columns.stop // per_byte]
        if group < depth:
            groups = slice(columns.start // group, -(-columns.stop // group))
            scales, zeros = scales[groups], None if zeros is None else zeros[groups]
        else:
            scheme = scheme._replace(group=len(columns))
    return QuantisedWeight(
        scheme,
        codes[rows].view(weight.codes.dtype),
        _columns(scales, rows),
        None if zeros is None else _columns(zeros, rows),
        weight.order,
    )


def _columns(values: Tensor, columns: Tensor) -> Tensor:
    return values[:, columns].contiguous()
