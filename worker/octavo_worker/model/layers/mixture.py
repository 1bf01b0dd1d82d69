"""A mixture of experts: an MLP of which each row takes a few parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import (
    Activation,
    Assignments,
    Experts,
    Gate,
    Routed,
    RouterLogits,
    RouterProduct,
    Routing,
    SharedProduct,
    Taken,
)
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.linear import Dense, Linear
from octavo_worker.model.layers.norm import AddNorm, Input, RmsNorm

HALF_BYTES = 2
"""Bytes of an element of rows on a GPU, whose kernels of experts take 16 bits alone."""
ROUTER = "router"
EXPERTS_GATE_UP, EXPERTS_DOWN = "experts: gate, up", "experts: down"
SHARED_GATE_UP, SHARED_DOWN, SHARED_GATE = "shared: gate, up", "shared: down", "shared: gate of rows"


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """The choice among experts: `logits` is a product in float32 with `correction[experts]` beside it. Rounded to 16
    bits, every thirteenth row would choose others. `counters` are those of `ops.route_rows`, on a GPU. It may have a
    `norm` of its rows, on a CPU in float32, on a GPU without weights, and `factors[experts]` of the weights."""

    logits: Dense
    routing: Routing
    correction: Tensor | None = None
    counters: Tensor | None = None
    norm: RmsNorm | None = None
    factors: Tensor | None = None

    def folded(self, dtype: torch.dtype) -> Router:
        """The same choice, of rows of `dtype` on a GPU, whose kernel takes a norm of that type: its weights go into the
        product."""
        if self.norm is None:
            return self
        norm = self.norm.operand
        ones = torch.ones_like(norm.weight, dtype=dtype)
        logits = replace(self.logits, weight=self.logits.weight * norm.weight)
        return replace(self, logits=logits, norm=RmsNorm(ones, norm.eps, 0.0))

    def choose(self, rows: Tensor) -> Assignments:
        rows = rows.float()
        rows = rows if self.norm is None else self.norm.apply(rows, torch.empty_like(rows))
        taken = ops.route(self.logits.apply(Input(rows)), self.routing, self.correction)
        if self.factors is None:
            return taken
        chosen = torch.bucketize(taken.places, taken.starts, right=True) - 1  # experts without rows begin there, too
        return taken._replace(weights=taken.weights * self.factors[chosen])

    def route(self, x: Input, gate: Dense | None, few: int = 0) -> Routed:
        """On a GPU: norm, product and choice, and the factors of a shared expert's gate, in one go. Rows are those of
        the router's own norm, where it has one; `x` is not to be normed then. `few`: as `RouterProduct` has it."""
        assert self.counters is not None
        return ops.route_rows(
            RouterProduct(
                x.rows, self.logits.weight, self.routing, self.counters, bias=self.logits.bias,
                correction=self.correction, factors=self.factors, gate=None if gate is None else gate.weight,
                norm=x.norm if self.norm is None else self.norm.operand, normed=x.normed, slots=x.slots,
                few=few, uniform=self.logits.products.uniform,
            )
        )  # fmt: skip

    def listed(self, x: Input) -> Assignments:
        """Assignments for a look at them, on a GPU of a few rows, too."""
        return ops.listed(self.route(x, None).taken) if x.rows.is_cuda else self.choose(x.rows)


@dataclass(frozen=True, slots=True)
class ExpertGate:
    """The activation of the first half of a product's columns, times the second half. `clamped`: the first is at most
    that, the second lies within it and is larger by one."""

    activation: Gate
    clamped: float | None = None
    halves: ClassVar = 2

    def apply(self, product: Tensor) -> Tensor:
        """Overwrites `product`."""
        if self.clamped is not None:
            gate, up = product.chunk(2, dim=1)
            gate.clamp_(max=self.clamped)
            up.clamp_(-self.clamped, self.clamped).add_(1)
        return ops.act_and_mul(product, self.activation)

    def shared(self, up: Linear, rows: Tensor, width: int) -> Tensor:
        """Product and activation, `[T, width]`, of the expert that all rows take, which is never clamped."""
        out, scratch = (rows.new_empty(len(rows), columns) for columns in (width, 2 * width))
        return up.gated(Input(rows), self.activation, out, scratch)

    def experts_up(self, rows: Tensor, experts: Experts, taken: Taken, shared: SharedProduct | None) -> Tensor:
        """On a GPU: product and activation by place."""
        return ops.experts_up(rows, experts, taken, self.activation, self.clamped, shared=shared)


@dataclass(frozen=True, slots=True)
class ExpertActivation:
    """The activation of experts without a gate, or its square."""

    activation: Activation
    squared: bool = False
    halves: ClassVar = 1

    def apply(self, product: Tensor) -> Tensor:
        activated = ops.act(product, self.activation)
        return activated.mul_(activated) if self.squared else activated

    def shared(self, up: Linear, rows: Tensor, width: int) -> Tensor:
        """Product and activation, `[T, width]`, of the expert that all rows take."""
        return self.apply(up.apply(Input(rows)))

    def experts_up(self, rows: Tensor, experts: Experts, taken: Taken, shared: SharedProduct | None) -> Tensor:
        """On a GPU: product and activation by place. Kernels have the square of relu alone."""
        assert self.activation == "relu"
        assert self.squared
        return ops.experts_up(rows, experts, taken, "relu2", shared=shared)


@dataclass(frozen=True, slots=True, eq=False)
class SharedExpert:
    """An expert that all rows take, with `width` activations. `gate` is a product in float32 with one column."""

    up: Linear  # rows: gate, up
    down: Linear
    width: int
    gate: Dense | None = None

    @property
    def is_dense(self) -> bool:
        """True if its matrices are in 16 bits on a GPU, with rows of whole 16 bytes, as experts have them."""
        return isinstance(self.up, Dense) and isinstance(self.down, Dense) and self.down.weight.shape[1] % 8 == 0


@dataclass(frozen=True, slots=True, eq=False)
class Mixture(Linear):
    """From hidden states to hidden states: `up` and `down` have the matrices of all experts, one below the other, or of
    those that this rank has `owned`. The sum over a row's experts is in float32, in their order, whatever other rows
    take. With a `norm` that is of the experts' rows, and the router reads the rows as they are."""

    router: Router
    up: Linear
    down: Linear
    gate: ExpertGate | ExpertActivation
    shared: SharedExpert | None = None
    owned: range | None = None
    norm: RmsNorm | None = None

    def products(self) -> Mapping[str, Linear]:
        """By name, in the order in which a step takes them."""
        named = {ROUTER: self.router.logits, EXPERTS_GATE_UP: self.up, EXPERTS_DOWN: self.down}
        if self.shared is not None:
            named |= {SHARED_GATE_UP: self.shared.up, SHARED_DOWN: self.shared.down}
            named |= {} if self.shared.gate is None else {SHARED_GATE: self.shared.gate}
        return named

    @property
    def forms(self) -> frozenset[str]:
        return frozenset().union(*(linear.forms for linear in self.products().values()))

    @property
    def nbytes(self) -> int:
        return sum(linear.nbytes for linear in self.products().values())

    def step_bytes(self, rows: int) -> int:
        """Bytes of what the experts make of so many rows, on a GPU."""
        routing = self.router.routing
        columns = self.up.experts().columns // self.gate.halves + self.down.experts().columns
        count = routing.experts if self.owned is None else len(self.owned)
        return rows * routing.chosen * (columns // count) * HALF_BYTES

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        return self._apply_into(x, x.rows.new_empty(x.rows.shape) if out is None else out, residual)

    def add_scaled(self, x: Input, total: Tensor, factor: float) -> bool:
        self._apply_into(x, total, total, factor)
        return True

    def _apply_into(self, x: Input, out: Tensor, residual: Tensor | None, factor: float = 1.0) -> Tensor:
        if x.rows.is_cuda:
            return self._apply_on_gpu(x, out, residual, factor)
        rows = x.materialise()
        taken = self.router.choose(rows)
        rows = rows if self.norm is None else self.norm.apply(rows, torch.empty_like(rows))
        parts = self._products(rows, taken) if self.owned is None else self._own_products(rows, taken, self.owned)
        shared, gates = self._shared(rows)
        return ops.combine(parts, taken, out, shared=shared, gates=gates, residual=residual, factor=factor)

    def _products(self, rows: Tensor, taken: Assignments) -> Tensor:
        """By place."""
        activated = self.gate.apply(self.up.grouped(rows.index_select(0, taken.sources), taken.starts))
        return self.down.grouped(activated, taken.starts)

    def _own_products(self, rows: Tensor, taken: Assignments, owned: range) -> Tensor:
        """By place; zeros for the other ranks' experts."""
        starts = taken.starts[owned.start : owned.stop + 1]
        first, last = starts[0].item(), starts[-1].item()
        own = self._products(rows, taken._replace(sources=taken.sources[first:last], starts=starts - first))
        parts = own.new_zeros(len(taken.sources), own.shape[1])
        parts[first:last] = own
        return parts

    def _apply_on_gpu(self, x: Input, out: Tensor, residual: Tensor | None, factor: float = 1.0) -> Tensor:
        """Three launches of a few rows, five of more; a norm of the experts' own is one more, and so are products of a
        shared expert that are not within the others'."""
        if not len(x.rows):
            return out
        gate, up = None if self.shared is None else self.shared.gate, self.up.experts()
        routed = self.router.route(x, gate, up.few)
        within, shared = self._shared_on_gpu(routed)
        taken = routed.taken if self.owned is None else assigned_to(self.owned, routed.taken)
        rows = routed.rows if self.norm is None else self.norm.apply(x.rows, torch.empty_like(x.rows))
        inner = self.gate.experts_up(rows, up, taken, within)
        return ops.experts_down(
            inner, self.down.experts(), taken, out, shared=shared, gates=routed.gates, residual=residual, factor=factor
        )

    def _shared_on_gpu(self, routed: Routed) -> tuple[SharedProduct | None, Tensor | SharedProduct | None]:
        """The shared expert in the launches of both products: of a few rows, and matrices in 16 bits all round, its own
        two, else its output in the second."""
        if self.shared is None:
            return None, None
        is_dense = isinstance(self.up, Dense) and isinstance(self.down, Dense) and self.shared.is_dense
        if not isinstance(routed.taken, RouterLogits) or not is_dense or self.norm is not None:
            return None, self._shared_output(routed.rows)
        up, down = self.shared.up.experts(), self.shared.down.experts()
        activated = routed.rows.new_empty(len(routed.rows), self.shared.width)
        return SharedProduct(up, activated), SharedProduct(down, activated)

    def _shared(self, rows: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The shared expert's output of rows, and its factor of each."""
        if self.shared is None:
            return None, None
        made = self._shared_output(rows)
        if self.shared.gate is None:
            return made, None
        return made, ops.sigmoid(self.shared.gate.apply(Input(rows.float())).flatten())

    def _shared_output(self, rows: Tensor) -> Tensor:
        assert self.shared is not None
        return self.shared.down.apply(Input(self.gate.shared(self.shared.up, rows, self.shared.width)))


def assigned_to(some: range, taken: Taken) -> Taken:
    """Assignments to `some` of the experts, for a GPU's kernels with these experts' matrices: all others have the place
    -1. Nothing waits for the device."""
    if isinstance(taken, RouterLogits):
        return taken._replace(owned=some)
    starts = taken.starts[some.start : some.stop + 1]
    elsewhere = (taken.places < starts[0]) | (taken.places >= starts[-1])
    return taken._replace(places=taken.places.masked_fill(elsewhere, -1), starts=starts)


@dataclass(frozen=True, slots=True)
class ExpertMlp:
    """The sublayer that a mixture is. Of a model on several ranks `whole` sums their parts of it."""

    mixture: Mixture
    whole: Linear

    def products(self) -> Mapping[str, Linear]:
        return self.mixture.products()

    def into_norm(self, x: Input, b: Buffers, add_norm: AddNorm) -> Input:
        return self.whole.into_norm(replace(x, slots=b.slots), b, add_norm)
