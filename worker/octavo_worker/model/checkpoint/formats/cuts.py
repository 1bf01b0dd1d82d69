"""A rank's share of a quantised matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from octavo_kernels.products.weights import PER_BYTE, QuantisedWeight
from octavo_worker.model.checkpoint.header import Place
from octavo_worker.model.checkpoint.source import Cut
from octavo_worker.model.errors import UnsupportedModel

FEWER = "give fewer ranks (--tensor-parallel), --experts whole for those of a mixture, or another checkpoint."


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
    return in_order(QuantisedWeight(scheme, codes.view(weight.codes.dtype), scales, zeros, weight.order), rows)


def in_order(weight: QuantisedWeight, rows: Tensor | None) -> QuantisedWeight:
    """The weight with its `rows` in that order; None: as it is."""
    if rows is None:
        return weight
    return QuantisedWeight(
        weight.scheme,
        weight.codes.view(torch.uint8)[rows].view(weight.codes.dtype),
        _columns(weight.scales, rows),
        None if weight.zeros is None else _columns(weight.zeros, rows),
        weight.order,
    )


def tensor_cuts(tensors: Mapping[str, tuple[Place, Mapping[str, int]]], cut: Cut) -> dict[str, Cut] | None:
    """The cut of each tensor of a matrix, given with its axes (`stored.Wanted`); a tensor that is not in the answer is
    taken whole. None: `cut` begins or ends amid an element, or does not lie in one piece, and the whole matrix has to
    be read."""
    rows, depth = cut.shape
    along = {"rows": (cut.rows, rows), "depth": ([cut.columns], depth)}
    cuts = {}
    for ending, (place, axes) in tensors.items():
        if "groups" in axes and not cut.has_whole_rows:
            return None
        if len(place.shape) > len(cut.shape):
            return None
        if not (axes.keys() & along.keys()) or not place.shape:
            continue
        ranges = [_elements(*along[axis], unit) for axis, unit in axes.items()][: len(place.shape)]
        if any(each is None for each in ranges) or any(len(each or ()) != 1 for each in ranges[1:]):
            return None
        first, *second = [each for each in ranges if each is not None]
        cuts[ending] = Cut(place.shape, first, *(each[0] for each in second))
    return cuts


def _elements(ranges: Sequence[range], total: int, unit: int) -> list[range] | None:
    """Ranges of elements that stand for `unit` rows or columns each, of `total`."""
    if unit >= total:
        return [range(1)]
    if any(r.start % unit or (r.stop % unit and r.stop != total) for r in ranges):
        return None
    return [range(r.start // unit, -(-r.stop // unit)) for r in ranges]


def _columns(values: Tensor, columns: Tensor) -> Tensor:
    return values[:, columns].contiguous()
