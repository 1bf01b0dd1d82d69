"""Quantised weights in the panels that the kernels of the CPU read, and products with them.

Activations.FP8 takes rows of x as they are given, which is finer: there are no products of two such floats here.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from octavo_kernels import _cpu
from octavo_kernels.operands import DTYPES, address, rows_at
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import PER_BYTE, Activations, Codes, PackedWeight, QuantisedWeight, Scheme, values

PANEL, COLUMNS = 16, 64
"""Columns of a panel; what the number of all columns is filled up to a multiple of."""
AT_ONCE = 4 * COLUMNS
"""Columns that are laid out at a time: what is made on the way is small beside the matrix."""

MOST_INTEGERS = 65536
"""Products of an int8 and a code less its zero point whose sum an int32 surely holds."""


def pack(weight: QuantisedWeight) -> PackedWeight:
    """Codes go into the pieces that csrc/cpu/args.h describes, scales and zeros beside them.
    Groups are filled up to whole steps of the kernels; `order[packed depth]` is -1 where nothing was. Raises
    `ValueError` for a scheme that no kernel computes."""
    _check(weight)
    columns, depth, stored = weight.columns, weight.depth, weight.scheme.codes
    if weight.scheme.activations is Activations.INT8:
        weight = _integers(weight)
    scheme, order = weight.scheme, weight.order
    group, step, share = min(scheme.group, depth), _step(scheme, depth), PER_BYTE[scheme.codes]
    if order is None and group < depth and group % step:
        order = torch.arange(depth, dtype=torch.int32)
    scales = _with_nan(weight, group) if scheme.codes is Codes.FP8 else weight.scales
    return PackedWeight(
        scheme,
        columns,
        depth,
        _laid_out(weight.codes, stored, scheme, group // share, step // share),
        _beside(scales),
        None if weight.zeros is None else _beside(weight.zeros),
        None if order is None else _filled_up(order[None], group, step, -1)[0],
    )


def linear(p: Product[PackedWeight], out: Tensor) -> None:
    """Writes `out[T, columns]`. All operands are checked, and there is no norm."""
    packed = described(p.weight, p.weight.columns)
    _cpu.quantised_linear(
        DTYPES[p.x.dtype], rows_at(p.x), packed, address(p.bias), rows_at(p.residual), rows_at(out), len(p.x)
    )


def described(weight: PackedWeight, columns: int) -> tuple[int, ...]:
    """The weight as the module takes it, with so many columns in a product."""
    scheme, groups = weight.scheme, weight.scales.shape[1]
    packed_depth = weight.codes.shape[1] * 4 * PER_BYTE[scheme.codes]
    step = _step(scheme, weight.depth)
    group = packed_depth if groups == 1 else -(-scheme.group // step) * step
    x_group = scheme.activation_group or weight.depth
    return (
        int(scheme.codes),
        int(scheme.activations is Activations.INT8),
        columns,
        weight.depth,
        packed_depth,
        group,
        groups,
        x_group,
        max(1, x_group // scheme.group) if scheme.activation_group else groups,
        address(weight.codes),
        address(weight.scales),
        address(weight.zeros),
        address(weight.order),
    )


def _check(weight: QuantisedWeight) -> None:
    scheme, depth = weight.scheme, weight.depth
    if scheme.codes in (Codes.INT4, Codes.FP4) and scheme.group % 2 and scheme.group < depth:
        raise ValueError(f"groups of {scheme.group} codes in 4 bits begin within a byte: there is no kernel for them")
    if scheme.activations is not Activations.INT8:
        return
    if scheme.codes in (Codes.FP4, Codes.FP8):
        raise ValueError(f"{scheme.codes.name} weights and INT8 activations have no kernel; take activations as given")
    if min(scheme.group, depth) > MOST_INTEGERS:
        raise ValueError(f"groups of more than {MOST_INTEGERS} integers may overflow, and one has {scheme.group}")
    x_group = scheme.activation_group
    if 0 < x_group < depth and weight.order is not None:
        raise ValueError("an order of the columns of x is for activations with one scale a row")
    if 0 < x_group < depth and scheme.group < depth and x_group % scheme.group and scheme.group % x_group:
        raise ValueError(f"groups of {x_group} activations and of {scheme.group} codes overlap: there is no kernel")


def _integers(weight: QuantisedWeight) -> QuantisedWeight:
    """Codes are to be int8, and zeros with 128 added; groups end wherever one of the activations does."""
    scheme, scales, zeros = weight.scheme, weight.scales, weight.zeros
    if scheme.codes is Codes.INT4 and zeros is not None:
        zeros = zeros.to(torch.int8) - 8
    depth, group = weight.depth, min(scheme.group, weight.depth)
    x_group = 0 if scheme.activation_group >= depth else scheme.activation_group
    if 0 < x_group < group:
        owner = torch.arange(0, depth, x_group) // group
        scales, zeros = scales[owner], None if zeros is None else zeros[owner]
        group = x_group
    return QuantisedWeight(
        Scheme(Codes.INT8, group, scheme.activations, x_group),
        weight.codes,
        scales,
        None if zeros is None else zeros.view(torch.uint8) ^ 128,
        weight.order,
    )


def _step(scheme: Scheme, depth: int) -> int:
    """Step of the kernels along the depth: the most that fills up a group no further than 16 would."""
    steps = (64, 32, 16) if scheme.activations is Activations.INT8 else (32, 16)
    if scheme.group >= depth:
        return steps[0]
    return next(step for step in steps if -scheme.group % step == -scheme.group % 16)


def _filled_up(rows: Tensor, group: int, step: int, value: int = 0) -> Tensor:
    """`rows[n, depth]` with each group of the depth filled up to a multiple of `step`."""
    depth = rows.shape[1]
    if group >= depth or group % step == 0:
        return pad(rows, (0, -depth % step), value=value)
    last = depth % group or group
    whole: Tensor = pad(rows, (0, -depth % group), value=value).unflatten(1, (-1, group))
    whole = pad(whole, (0, -group % step), value=value).flatten(1)
    return whole[:, : whole.shape[1] - (-(-group // step) + -last // step) * step].contiguous()


def _laid_out(codes: Tensor, stored: Codes, scheme: Scheme, group: int, step: int) -> Tensor:
    """`codes[columns]` of the kind `stored` in panels, each group of bytes filled up to a multiple of `step`."""
    high = PANEL if scheme.activations is Activations.INT8 else COLUMNS
    panels = torch.empty(0, dtype=torch.uint8)
    for begin in range(0, len(codes), AT_ONCE):
        part = codes[begin : begin + AT_ONCE]
        if scheme.activations is Activations.INT8:
            part = (values(part, stored).to(torch.int8) if stored is Codes.INT4 else part).view(torch.uint8) ^ 128
        made = _panels(_filled_up(part.view(torch.uint8), group, step), scheme)
        if begin == 0:
            panels = made.new_empty(-(-len(codes) // COLUMNS) * COLUMNS // high, *made.shape[1:])
        panels[begin // high :][: len(made)] = made
    return panels


def _panels(codes: Tensor, scheme: Scheme) -> Tensor:
    """`codes[columns, bytes]` (uint8) as pieces of 64 bytes, `[columns / 64, pieces, 4, 64]`; those that meet integers
    as `[columns / 16, pieces, 64]`."""
    codes = pad(codes, (0, 0, 0, -len(codes) % COLUMNS))
    if PER_BYTE[scheme.codes] == 2:
        first, second, third, fourth = codes.unflatten(1, (-1, 4)).unbind(-1)
        even = (first & 15 | second << 4, third & 15 | fourth << 4)
        odd = (first >> 4 | second & 0xF0, third >> 4 | fourth & 0xF0)
        codes = torch.stack((*even, *odd), dim=-1).flatten(1)
    pieces: Tensor = codes.unflatten(0, (-1, PANEL)).unflatten(2, (-1, 4)).transpose(1, 2)
    if scheme.activations is Activations.INT8:
        tiles: Tensor = pieces.flatten(2)
        return tiles.contiguous()
    if PER_BYTE[scheme.codes] == 1:
        pieces = pieces.transpose(2, 3)
    panels: Tensor = pieces.flatten(2).unflatten(0, (-1, COLUMNS // PANEL)).transpose(1, 2)
    return panels.contiguous()


def _beside(by_group: Tensor) -> Tensor:
    """`[groups, columns]` as `[columns / 64, groups, 64]`."""
    filled = pad(by_group, (0, -by_group.shape[1] % COLUMNS))
    panels: Tensor = filled.unflatten(1, (-1, COLUMNS)).transpose(0, 1)
    return panels.contiguous()


def _with_nan(weight: QuantisedWeight, group: int) -> Tensor:
    """The scales, NaN wherever a code is: the kernels read that code as a number."""
    scales = weight.scales
    for begin in range(0, weight.columns, AT_ONCE):
        broken = weight.codes[begin : begin + AT_ONCE].view(torch.uint8) & 127 == 127
        if bool(broken.any()):
            by_group = pad(broken, (0, -weight.depth % group)).unflatten(1, (-1, group)).any(-1)
            scales = scales.clone() if scales is weight.scales else scales
            scales[:, begin : begin + AT_ONCE].masked_fill_(by_group.T, float("nan"))
    return scales
