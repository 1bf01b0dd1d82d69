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
from octavo_kernels.products.weights import Codes

COUNTERS = 128
"""Zeros that routing needs, as `kCounters` in csrc/cuda/experts/args.h."""
FEW_ROWS, CODED_FEW_ROWS = 3, {Codes.INT4: 2, Codes.INT8: 2, Codes.FP4: 4, Codes.FP8: 1}
"""Rows of a step up to which units of the matrices, or of codes, flow through all blocks, which choose by themselves;
beyond, tiles of an expert's rows are faster. The kernels for a few take up to 8."""
MOST_EXPERTS, MOST_CHOSEN, MOST_GROUPS = 512, 32, 32
UNGATED = {"relu2": 5}
"""Activations without a gate, the square of max(x, 0), with their codes: `kSquaredRelu` in
csrc/cuda/experts/activation.cuh."""
Ungated = Literal["relu2"]


class RouterProduct(NamedTuple):
    """The product of `x[T, H]`, or of its RMS norm, which goes to `normed[T, H]`, with `router[E, H]` (float32), plus
    `bias[E]`, and what follows from it. `gate[1, H]` (float32) is that of a shared expert. Rows whose slot,
    `slots[T]` (int64), is below 0 are padding. `counters[COUNTERS]` are int32 zeros that one stream at a time may use.
    `factors[E]` (float32) are of the weights of experts, whose products choose by themselves for up to `few` rows.
    `uniform`: a row's bits do not depend on the number of rows."""

    x: Tensor
    router: Tensor
    routing: Routing
    counters: Tensor
    bias: Tensor | None = None
    correction: Tensor | None = None
    factors: Tensor | None = None
    gate: Tensor | None = None
    norm: RmsNorm | None = None
    normed: Tensor | None = None
    slots: Tensor | None = None
    few: int = FEW_ROWS
    uniform: bool = False


class RouterLogits(NamedTuple):
    """Logits `[T, E]` of a few rows, by which the products' kernels choose, and what else the choice depends on. The
    experts whose matrices there are, if not all, are `owned`."""

    logits: Tensor
    routing: Routing
    correction: Tensor | None = None
    factors: Tensor | None = None
    slots: Tensor | None = None
    owned: range | None = None


Taken = Assignments | RouterLogits


class Routed(NamedTuple):
    """Rows as the experts take them, their assignments, or of a few rows the logits, and their factors of a shared
    expert, `[T]` (float32). Places of padding are -1; `sources` has as many valid places as the last of `starts`
    says."""

    rows: Tensor
    taken: Taken
    gates: Tensor | None


def route_rows(p: RouterProduct) -> Routed:
    """The rule is that of `route`; scores are in float32. Of up to 64 rows it is one launch, if not `uniform`. Raises
    `TypeError` or `ValueError`, naming the argument, for what does not fit."""
    _check_router(p)
    rows, width = p.x.shape
    normed = p.x if p.norm is None else output(p.normed, p.x, (rows, width))
    experts, device = p.routing.experts, p.x.device
    logits, gates = torch.empty(rows * (experts + 1), device=device).split((rows * experts, rows))
    found = RouterLogits(logits.view(rows, experts), p.routing, p.correction, p.factors, p.slots)
    made, ids = (None, None) if rows <= p.few and not p.uniform else _room(found)
    cuda.run(
        "route_rows", device,
        DTYPES[p.x.dtype], rows_at(p.x), rows, width, norm_at(p.norm), rows_at(None if p.norm is None else normed),
        (*rows_at(p.router), address(p.bias), address(p.gate)), _logits(found), _lists(made),
        (address(gates), address(ids), address(p.counters)), p.uniform,
    )  # fmt: skip
    return Routed(normed, found if made is None else made, None if p.gate is None else gates)


def listed(taken: Taken) -> Assignments:
    """Assignments of rows to any of the experts, also where there are logits alone: for a look at them, which products
    do not need."""
    if isinstance(taken, Assignments):
        return taken
    made, ids = _room(taken)
    cuda.run("list_rows", taken.logits.device, len(taken.logits), _logits(taken), _lists(made), address(ids))
    return made


def _room(of: RouterLogits) -> tuple[Assignments, Tensor]:
    """Room for assignments, and for experts' numbers."""
    rows, chosen = len(of.logits), of.routing.chosen
    sizes = (*[rows * chosen] * 3, of.routing.experts + 1, rows * chosen)
    room = torch.empty(sum(sizes), dtype=torch.int32, device=of.logits.device)
    weights, places, sources, starts, ids = room.split(sizes)
    weights = weights.view(torch.float32)
    return Assignments(weights.view(rows, chosen), places.view(rows, chosen), sources, starts), ids


class Experts(NamedTuple):
    """Matrices of all experts, `weight[E * N, K]`, one below the other, and `bias[E * N]`."""

    weight: Tensor | CodedWeight
    bias: Tensor | None = None

    @property
    def columns(self) -> int:
        """Columns of all experts."""
        return self.weight.columns if isinstance(self.weight, CodedWeight) else len(self.weight)

    @property
    def few(self) -> int:
        """Rows of a step up to which a mixture's products choose by themselves."""
        return CODED_FEW_ROWS[self.weight.scheme.codes] if isinstance(self.weight, CodedWeight) else FEW_ROWS


class SharedProduct(NamedTuple):
    """A product of the expert that all rows of a step take, padding too, within the launch of the others': `rows` are
    those that the first one makes and the second one takes, `[T, W]`, of any width. Of experts in 16 bits and logits
    alone. It is never clamped."""

    expert: Experts
    rows: Tensor


def experts_up(
    x: Tensor,
    experts: Experts,
    taken: Taken,
    kind: Gate | Ungated,
    clamped: float | None = None,
    *,
    shared: SharedProduct | None = None,
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
    rows, chosen = _pairs(taken)
    check("x", x, x.dtype, (rows, None))
    width = 0 if shared is None else shared.rows.shape[-1]
    within = _shared(shared, x, experts, taken, halves * width, x.shape[1])
    out, x = x.new_empty(rows * chosen, columns // halves), _in_order(x, experts)
    cuda.run(
        *_operation("experts_up", x, experts),
        DTYPES[x.dtype], matrix, rows_at(x), rows, chosen, *_taken(taken), code, clamped or 0.0, rows_at(out),
        within,
    )  # fmt: skip
    return out


def experts_down(
    x: Tensor,
    experts: Experts,
    taken: Taken,
    out: Tensor | None = None,
    *,
    shared: Tensor | SharedProduct | None = None,
    gates: Tensor | None = None,
    residual: Tensor | None = None,
    factor: float = 1.0,
) -> Tensor:
    """Products of the rows of `x[A, K]`, which lie by place, each rounded, and summed as `combine` does it; `factor` is
    that of the sum, before the residual. A shared product is rounded, too. Logits must be older than the stream's
    previous kernel. Raises `TypeError` or `ValueError`, naming the argument, for what does not fit."""
    matrix, columns = _matrix(x, experts, taken)
    rows, chosen = _pairs(taken)
    check("x", x, x.dtype, (rows * chosen, None))
    out = output(out, x, (rows, columns))
    product, made = (shared, None) if isinstance(shared, SharedProduct) else (None, shared)
    within = _shared(product, x, experts, taken, columns, 0 if product is None else product.rows.shape[-1])
    for name, tensor in (("shared", made), ("residual", residual)):
        if tensor is not None:
            check(name, tensor, x.dtype, (rows, columns))
    if gates is not None:
        check("gates", gates, torch.float32, (rows,))
    if factor != 1.0 and residual is None:
        raise ValueError("factor is for a sum with a residual")
    parts = x.new_empty(rows * chosen, columns) if isinstance(taken, Assignments) else None
    x = _in_order(x, experts)
    cuda.run(
        *_operation("experts_down", x, experts),
        DTYPES[x.dtype], matrix, rows_at(x), rows, chosen, *_taken(taken),
        (rows_at(made), within, address(gates), factor, rows_at(residual)), rows_at(parts), rows_at(out),
    )  # fmt: skip
    return out


def _shared(
    of: SharedProduct | None, x: Tensor, experts: Experts, taken: Taken, columns: int, depth: int
) -> tuple[object, ...]:
    """The module's `SharedProduct`, of a matrix `[columns, depth]`."""
    if of is None:
        return (0, 0, 0, 0, 0, 0), 0, 0
    (weight, bias), rows = of
    if isinstance(taken, Assignments) or isinstance(experts.weight, CodedWeight) or isinstance(weight, CodedWeight):
        raise ValueError("shared products are for logits and weights in 16 bits; compute them in launches of their own")
    check("shared.rows", rows, x.dtype, (len(taken.logits), None))
    check("shared.expert.weight", weight, x.dtype, (columns, depth))
    if bias is not None:
        check("shared.expert.bias", bias, x.dtype, (columns,))
    return (*rows_at(weight), address(bias), 1, columns, depth), *rows_at(rows)


def _operation(name: str, x: Tensor, experts: Experts) -> tuple[str, torch.device]:
    return f"coded_{name}" if isinstance(experts.weight, CodedWeight) else name, x.device


def _in_order(x: Tensor, experts: Experts) -> Tensor:
    """The columns of x in the order of the codes that they meet."""
    order = experts.weight.order if isinstance(experts.weight, CodedWeight) else None
    return x if order is None else x.index_select(1, order)


def _pairs(taken: Taken) -> tuple[int, int]:
    """Rows, and how many experts each takes."""
    if isinstance(taken, RouterLogits):
        return len(taken.logits), taken.routing.chosen
    rows, chosen = taken.places.shape
    return rows, chosen


def _count(taken: Taken) -> int:
    """Experts that have matrices here."""
    if isinstance(taken, Assignments):
        return len(taken.starts) - 1
    return taken.routing.experts if taken.owned is None else len(taken.owned)


def _lists(taken: Assignments | None) -> tuple[int, ...]:
    return (0, 0, 0, 0) if taken is None else tuple(address(tensor) for tensor in taken)


def _logits(of: RouterLogits) -> tuple[object, ...]:
    r = of.routing
    how = (r.experts, r.chosen, SCORES[r.score], *r[3:6], int(r.normalised), *r[7:])
    return (how, *(address(tensor) for tensor in (of.logits, of.correction, of.factors, of.slots)))


def _taken(taken: Taken) -> tuple[object, ...]:
    """The module's `Lists` and `FewChoice`, of which one is null."""
    if isinstance(taken, RouterLogits):
        return _lists(None), (_logits(taken), taken.owned.start if taken.owned else 0)
    return _lists(taken), (((0,) * 7 + (0.0,) * 3, 0, 0, 0, 0), 0)


def _matrix(x: Tensor, experts: Experts, taken: Taken) -> tuple[tuple[object, ...], int]:
    """Experts' matrices as the module takes them, and the columns of one."""
    _check_half(x)
    weight, count = experts.weight, _count(taken)
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
    for name, tensor in (("bias", p.bias), ("correction", p.correction), ("factors", p.factors)):
        if tensor is not None:
            check(name, tensor, torch.float32, (experts,))
    if p.gate is not None:
        check("gate", p.gate, torch.float32, (1, width))
    if p.norm is not None:
        check("norm.weight", p.norm.weight, p.x.dtype, (width,))
    if p.slots is not None:
        check("slots", p.slots, torch.int64, (rows,))
    check("counters", p.counters, torch.int32, (COUNTERS,))
