"""Mixtures of experts on a GPU: routing, the experts' products, and rows' sums of them. Nothing waits for the device,
and what is launched depends on the number of rows alone."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.call import check, output, rows_of
from octavo_kernels.experts.coded import matrix_of
from octavo_kernels.experts.route import SCORES, Assignments, Routing, check_routing
from octavo_kernels.operands import DTYPES, RmsNorm, address, norm_at, rows_at
from octavo_kernels.products.activation import Gate, code_of
from octavo_kernels.products.coded import CodedWeight

COUNTERS = 128
"""Zeros that routing needs, as `kCounters` in csrc/cuda/experts/args.h."""
FEW_ROWS = 3
"""Rows of a step up to which units of the matrices flow through all blocks; more are cut into tiles of an expert's
rows, which is faster from 4 rows on. The kernels for a few take up to 64."""
FEW_CODED_ROWS = 3
"""The same of matrices of codes, whose kernels for a few take up to 8 rows."""
MOST_EXPERTS, MOST_CHOSEN, MOST_GROUPS = 512, 32, 32
UNGATED = {"relu2": 5}
"""Activations without a gate, the square of max(x, 0), with their codes: `kSquaredRelu` in
csrc/cuda/experts/activation.cuh."""
Ungated = Literal["relu2"]


class RouterProduct(NamedTuple):
    """The product of `x[T, H]`, or of its RMS norm, which goes to `normed[T, H]`, with `router[E, H]` (float32), plus
    `bias[E]`, and what follows from it. `gate[1, H]` (float32) is that of a shared expert. Rows whose slot,
    `slots[T]` (int64), is below 0 are padding. `counters[COUNTERS]` are int32 zeros that one stream at a time may use.
    `uniform`: a row's bits do not depend on the number of rows.
    """

    x: Tensor
    router: Tensor
    routing: Routing
    counters: Tensor
    bias: Tensor | None = None
    correction: Tensor | None = None
    gate: Tensor | None = None
    norm: RmsNorm | None = None
    normed: Tensor | None = None
    slots: Tensor | None = None
    uniform: bool = False


class Routed(NamedTuple):
    """Rows as the experts take them, their assignments, and their factors of a shared expert, `[T]` (float32). Places
    of padding are -1; `sources` has as many valid places as the last of `starts` says."""

    rows: Tensor
    taken: Assignments
    gates: Tensor | None


def route_rows(p: RouterProduct) -> Routed:
    """The rule is that of `route`; scores are in float32. Of up to 64 rows it is
    one launch, if not `uniform`. Raises `TypeError` or `ValueError`, naming the argument, for what does not fit."""
    _check_router(p)
    rows, width = p.x.shape
    experts, chosen = p.routing.experts, p.routing.chosen
    normed = p.x if p.norm is None else output(p.normed, p.x, (rows, width))
    pairs, device = rows * chosen, p.x.device
    sizes = (pairs, pairs, pairs, experts + 1, pairs, rows * experts, rows)
    room = torch.empty(sum(sizes), dtype=torch.int32, device=device)
    weights, places, sources, starts, ids, logits, gates = room.split(sizes)
    made = Assignments(weights.view(torch.float32).view(rows, chosen), places.view(rows, chosen), sources, starts)
    score, flag = SCORES[p.routing.score], int(p.routing.normalised)
    cuda.run(
        "route_rows", device,
        DTYPES[p.x.dtype], rows_at(p.x), rows, width, norm_at(p.norm), rows_at(None if p.norm is None else normed),
        (*rows_at(p.router), address(p.bias), address(p.correction), address(p.gate)), address(p.slots),
        (experts, chosen, score, *p.routing[3:6], flag, *p.routing[7:]), _lists(made),
        (address(logits), address(gates), address(ids), address(p.counters)), p.uniform,
    )  # fmt: skip
    return Routed(normed, made, None if p.gate is None else gates.view(torch.float32))


class Experts(NamedTuple):
    """Matrices of all experts, `weight[E * N, K]`, one below the other, and `bias[E * N]`. `uniform`: a row's bits
    do not depend on the number of rows of the step."""

    weight: Tensor | CodedWeight
    bias: Tensor | None = None
    uniform: bool = False

    @property
    def columns(self) -> int:
        """Columns of all experts."""
        return self.weight.columns if isinstance(self.weight, CodedWeight) else len(self.weight)


def experts_up(
    x: Tensor, experts: Experts, taken: Assignments, kind: Gate | Ungated, clamped: float | None = None
) -> Tensor:
    """For each assignment, by place, the gate's activation times the second half of its row's product, or an activation
    without a gate of the whole product, rounded as if the product were stored; `clamped`: the gate is at most that, and
    the other within it, and larger by one. Raises `TypeError` or `ValueError`, naming the argument, for what does not
    fit."""
    matrix, columns = _matrix(x, experts, taken)
    code, halves = (UNGATED[kind], 1) if kind in UNGATED else (code_of(kind), 2)
    if columns % halves:
        raise ValueError(f"weight must have an even number of rows for each expert, not {columns}")
    if clamped is not None and halves == 1:
        raise ValueError(f"clamped must be None for {kind}, which has no gate")
    rows, chosen = taken.places.shape
    check("x", x, x.dtype, (rows, None))
    out, x = x.new_empty(rows * chosen, columns // halves), _in_order(x, experts)
    cuda.run(
        *_operation("experts_up", x, experts),
        DTYPES[x.dtype], matrix, rows_at(x), rows, chosen, address(taken.sources), address(taken.starts), code,
        clamped or 0.0, rows_at(out), _many(rows, experts),
    )  # fmt: skip
    return out


def experts_down(
    x: Tensor,
    experts: Experts,
    taken: Assignments,
    out: Tensor | None = None,
    *,
    shared: Tensor | None = None,
    gates: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Products of the rows of `x[A, K]`, which lie by place, each rounded, and summed as `combine` does it. Lists must
    be older than the stream's previous kernel. Raises `TypeError` or `ValueError`, naming the argument, for what does
    not fit."""
    matrix, columns = _matrix(x, experts, taken)
    rows, chosen = taken.places.shape
    check("x", x, x.dtype, (rows * chosen, None))
    out = output(out, x, (rows, columns))
    for name, tensor in (("shared", shared), ("residual", residual)):
        if tensor is not None:
            check(name, tensor, x.dtype, (rows, columns))
    if gates is not None:
        check("gates", gates, torch.float32, (rows,))
    parts = x.new_empty(rows * chosen, columns) if _many(rows, experts) else None
    x = _in_order(x, experts)
    cuda.run(
        *_operation("experts_down", x, experts),
        DTYPES[x.dtype], matrix, rows_at(x), rows, chosen, _lists(taken), rows_at(shared), address(gates),
        rows_at(residual), rows_at(parts), rows_at(out),
    )  # fmt: skip
    return out


def _many(rows: int, experts: Experts) -> bool:
    return experts.uniform or rows > (FEW_CODED_ROWS if isinstance(experts.weight, CodedWeight) else FEW_ROWS)


def _operation(name: str, x: Tensor, experts: Experts) -> tuple[str, torch.device]:
    return f"coded_{name}" if isinstance(experts.weight, CodedWeight) else name, x.device


def _in_order(x: Tensor, experts: Experts) -> Tensor:
    """The columns of x in the order of the codes that they meet."""
    order = experts.weight.order if isinstance(experts.weight, CodedWeight) else None
    return x if order is None else x.index_select(1, order)


def _lists(taken: Assignments) -> tuple[int, ...]:
    return tuple(address(tensor) for tensor in taken)


def _matrix(x: Tensor, experts: Experts, taken: Assignments) -> tuple[tuple[object, ...], int]:
    """Experts' matrices as the module takes them, and the columns of one."""
    _check_half(x)
    weight, count = experts.weight, len(taken.starts) - 1
    _, depth = rows_of("x", x)
    if isinstance(weight, CodedWeight):
        if weight.depth != depth:
            raise ValueError(f"x must have {weight.depth} columns, not {depth}")
    else:
        check("weight", weight, x.dtype, (None, depth))
    if experts.columns % count:
        raise ValueError(f"weight must have rows for {count} experts alike, not {experts.columns}")
    if experts.bias is not None:
        check("bias", experts.bias, x.dtype, (experts.columns,))
    columns = experts.columns // count
    described = (address(experts.bias), count, columns, depth)
    if isinstance(weight, CodedWeight):
        return ((0, 0, *described), matrix_of(weight, columns)), columns
    return (*rows_at(weight), *described), columns


def _check_half(x: Tensor) -> None:
    if x.dtype not in cuda.HALF:
        raise TypeError(f"x must be bfloat16 or float16, not {x.dtype}")
    if not x.is_cuda:
        raise ValueError(f"x is on {x.device}; these are the kernels for GPUs")


def _check_router(p: RouterProduct) -> None:
    _check_half(p.x)
    check_routing(p.routing)
    experts, (rows, width) = p.routing.experts, rows_of("x", p.x)
    if experts > MOST_EXPERTS or p.routing.chosen > MOST_CHOSEN or p.routing.groups > MOST_GROUPS:
        raise ValueError(
            f"{p.routing.chosen} of {experts} experts in {p.routing.groups} groups are too many: {MOST_CHOSEN} of "
            f"{MOST_EXPERTS} in {MOST_GROUPS} at most"
        )
    check("router", p.router, torch.float32, (experts, width))
    for name, tensor in (("bias", p.bias), ("correction", p.correction)):
        if tensor is not None:
            check(name, tensor, torch.float32, (experts,))
    if p.gate is not None:
        check("gate", p.gate, torch.float32, (1, width))
    if p.norm is not None:
        check("norm.weight", p.norm.weight, p.x.dtype, (width,))
    if p.slots is not None:
        check("slots", p.slots, torch.int64, (rows,))
    check("counters", p.counters, torch.int32, (COUNTERS,))
