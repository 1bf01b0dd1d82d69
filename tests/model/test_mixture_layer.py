"""A mixture of experts as a layer: what it computes, row by row, in every type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from octavo_kernels import ops
from octavo_kernels.ops import (
    Assignments,
    Experts,
    Product,
    Routed,
    RouterLogits,
    RouterProduct,
    Routing,
    SharedProduct,
    Taken,
)
from octavo_worker.model.layers.linear import Dense, Linear, Products
from octavo_worker.model.layers.mixture import ExpertGate, Mixture, Router, SharedExpert
from octavo_worker.model.layers.norm import Input, RmsNorm
from octavo_worker.model.layers.parts import Parts

HIDDEN, WIDTH, EXPERTS = 96, 48, 16
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def made(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


def mixture(dtype: torch.dtype, routing: Routing, clamped: float | None = None, *, shared: bool = True) -> Mixture:
    def dense(*shape: int, seed: int) -> Dense:
        return Dense(made(*shape, seed=seed).to(dtype), made(shape[0], seed=seed + 1).to(dtype))

    gate = Dense(made(1, HIDDEN, seed=7))
    return Mixture(
        Router(Dense(made(EXPERTS, HIDDEN, seed=1) * 4), routing, made(EXPERTS, seed=2)),
        dense(EXPERTS * 2 * WIDTH, HIDDEN, seed=3),
        dense(EXPERTS * HIDDEN, WIDTH, seed=4),
        ExpertGate("silu" if clamped is None else "gelu_quick", clamped),
        SharedExpert(dense(2 * WIDTH, HIDDEN, seed=5), dense(HIDDEN, WIDTH, seed=6), WIDTH, gate) if shared else None,
    )


def parts(linear: Linear, count: int) -> list[tuple[Tensor, Tensor]]:
    """Matrix and bias of each expert, in double precision."""
    assert isinstance(linear, Dense)
    assert linear.bias is not None
    return list(zip(linear.weight.double().chunk(count), linear.bias.double().chunk(count), strict=True))


def expected(layer: Mixture, x: Tensor) -> Tensor:
    """One row after the other, in double precision."""

    def gated(up: Tensor) -> Tensor:
        gate, rest = up.chunk(2)
        if layer.gate.clamped is None:
            return functional.silu(gate) * rest
        gate, rest = gate.clamp(max=layer.gate.clamped), rest.clamp(-layer.gate.clamped, layer.gate.clamped)
        return gate * (1.702 * gate).sigmoid() * (rest + 1)

    router, how = layer.router, layer.router.routing
    assert isinstance(router.logits, Dense)
    assert router.correction is not None
    ups, downs = parts(layer.up, EXPERTS), parts(layer.down, EXPERTS)
    rows = []
    for row in x.double():
        scores = (router.logits.weight.double() @ row).sigmoid()
        chosen = (scores + router.correction.double()).topk(how.chosen).indices
        weights = scores[chosen] / (scores[chosen].sum() if how.normalised else 1) * how.scale
        terms = [
            weight * (downs[expert][0] @ gated(ups[expert][0] @ row + ups[expert][1]) + downs[expert][1])
            for expert, weight in zip(chosen.tolist(), weights, strict=True)
        ]
        if layer.shared is not None:
            ((up, up_bias),), ((down, down_bias),) = parts(layer.shared.up, 1), parts(layer.shared.down, 1)
            assert isinstance(layer.shared.gate, Dense)
            factor = (layer.shared.gate.weight.double() @ row).sigmoid()
            terms.append(factor * (down @ gated(up @ row + up_bias) + down_bias))
        rows.append(torch.stack(terms).sum(0))
    return torch.stack(rows)


ROUTINGS = [Routing(EXPERTS, 3, "sigmoid", normalised=True, scale=1.5), Routing(EXPERTS, 4, "sigmoid")]


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("clamped", [None, 0.3])
def test_a_mixture_is_the_weighted_sum_of_its_experts(routing: Routing, clamped: float | None) -> None:
    layer, x = mixture(torch.float32, routing, clamped, shared=clamped is None), made(40, HIDDEN, seed=8) * 9
    torch.testing.assert_close(layer.apply(Input(x)).double(), expected(layer, x), rtol=1e-4, atol=1e-5)


def test_a_router_reads_rows_of_16_bits_in_float32() -> None:
    """Or other experts would be chosen: among 4,000 rows some differ."""
    dtype = torch.bfloat16
    layer, x = mixture(dtype, ROUTINGS[0]), (made(4000, HIDDEN, seed=9) * 9).to(dtype)
    taken = layer.router.choose(x)
    assert isinstance(layer.router.logits, Dense)
    assert layer.router.correction is not None
    scores = (x.double() @ layer.router.logits.weight.double().T).sigmoid()
    wanted = (scores + layer.router.correction).topk(3).indices.sort(-1).values
    found = torch.bucketize(taken.places, taken.starts[1:], right=True)
    assert torch.equal(found, wanted)
    rounded = (x.double() @ layer.router.logits.weight.double().T).to(dtype).double().sigmoid()
    assert not torch.equal((rounded + layer.router.correction).topk(3).indices.sort(-1).values, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_computed_as_if_it_were_alone(dtype: torch.dtype) -> None:
    layer, x = mixture(dtype, ROUTINGS[0]), (made(300, HIDDEN, seed=10) * 9).to(dtype)
    together = layer.apply(Input(x))
    for begin, end in ((0, 1), (299, 300), (5, 7), (17, 50), (100, 164), (1, 300)):
        assert torch.equal(layer.apply(Input(x[begin:end])), together[begin:end])
    for row in range(0, 300, 13):
        assert torch.equal(layer.apply(Input(x[row : row + 1])), together[row : row + 1])


def test_the_residual_is_added_last_and_may_be_where_the_sum_goes() -> None:
    layer, x, hidden = mixture(torch.float32, ROUTINGS[0]), made(20, HIDDEN, seed=11) * 9, made(20, HIDDEN, seed=12)
    plain, wanted = layer.apply(Input(x)), hidden.clone()
    wanted += plain
    found = layer.apply(Input(x), hidden, residual=hidden)
    assert found.data_ptr() == hidden.data_ptr()
    torch.testing.assert_close(found, wanted)
    wanted += 0.22 * plain
    assert layer.add_scaled(Input(x), hidden, 0.22)
    torch.testing.assert_close(hidden, wanted)


def test_a_norm_that_was_left_to_the_next_product_is_taken() -> None:
    layer, hidden = mixture(torch.float32, ROUTINGS[0]), made(20, HIDDEN, seed=13)
    norm = RmsNorm(made(HIDDEN, seed=14) + 1, 1e-6, 0.0)
    normed = norm.defer(hidden, torch.empty_like(hidden))
    wanted = layer.apply(Input(norm.apply(hidden, torch.empty_like(hidden))))
    assert torch.equal(layer.apply(normed), wanted)


@pytest.mark.parametrize("rows", [1, 20])
def test_norms_and_factors_of_a_mixtures_own_are_a_gpus_too(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are the CPU's here: routing takes a norm without weights, and rows that experts read are others."""
    bare = mixture(torch.float32, ROUTINGS[0], shared=False)
    norms = [RmsNorm(made(HIDDEN, seed=seed) * 9 + 1, 1e-6, 0.0) for seed in (21, 22)]
    logits = replace(bare.router.logits, products=Products(uniform=True))
    router = replace(
        bare.router, logits=logits, norm=norms[0], factors=made(EXPERTS, seed=23) + 1, counters=torch.zeros(1)
    )
    layer, x = replace(bare, router=router, norm=norms[1]), made(rows, HIDDEN, seed=24) * 9
    wanted = layer.apply(Input(x))

    def route_rows(p: RouterProduct) -> Routed:
        assert p.uniform
        assert p.norm is not None
        assert torch.equal(p.norm.weight, torch.ones(HIDDEN))
        normed = ops.rms_norm(p.x, p.norm.weight, p.norm.eps)
        taken = ops.route(normed @ p.router.T, p.routing, p.correction)
        assert p.factors is not None
        factors = p.factors[torch.bucketize(taken.places, taken.starts, right=True) - 1]
        return Routed(normed, taken._replace(weights=taken.weights * factors), None)

    def experts_up(rows: Tensor, _: object, taken: Assignments, *__: object, shared: None) -> Tensor:
        return layer.gate.apply(layer.up.grouped(rows.index_select(0, taken.sources), taken.starts))

    def experts_down(
        inner: Tensor,
        _: object,
        taken: Assignments,
        out: Tensor,
        *,
        residual: Tensor | None,
        factor: float,
        **__: object,
    ) -> Tensor:
        return ops.combine(layer.down.grouped(inner, taken.starts), taken, out, residual=residual, factor=factor)

    for fake in (route_rows, experts_up, experts_down):
        monkeypatch.setattr(ops, fake.__name__, fake)
    on_gpu = replace(layer, router=router.folded(torch.float32))
    found = on_gpu._apply_on_gpu(Input(x), torch.empty_like(x), None)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    hidden = made(rows, HIDDEN, seed=25)
    found = on_gpu._apply_on_gpu(Input(x), torch.empty_like(x), hidden, 0.22)
    torch.testing.assert_close(found, hidden + 0.22 * wanted, atol=1e-5, rtol=1e-4)


SHARED = {
    "a few rows": (3, WIDTH, Dense, True),
    "lists": (4, WIDTH, Dense, False),
    "rows that begin anywhere": (2, WIDTH + 4, Dense, False),
    "unlike parts": (1, WIDTH, lambda *linear: Parts([Dense(*linear)], [len(linear[0])]), False),
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_a_shared_expert_is_within_a_gpus_launches_of_a_few_rows(
    name: str, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels are the CPU's here, but for what the shared expert needs."""
    rows, width, kind, wanted_within = SHARED[name]
    layer, x = mixture(torch.float32, ROUTINGS[0]), made(rows, HIDDEN, seed=25) * 9
    assert layer.shared is not None
    up = kind(made(2 * width, HIDDEN, seed=5), made(2 * width, seed=6))
    shared = SharedExpert(up, Dense(made(HIDDEN, width, seed=7)), width, layer.shared.gate if gated else None)
    layer = replace(layer, shared=shared, router=replace(layer.router, counters=torch.zeros(1)))
    within = []

    def lists(taken: Taken) -> Assignments:
        return taken if isinstance(taken, Assignments) else ops.route(*taken[:3])

    def route_rows(p: RouterProduct) -> Routed:
        found = RouterLogits(p.x @ p.router.T, p.routing, p.correction)
        gates = None if p.gate is None else ops.sigmoid((p.x @ p.gate.T).flatten())
        return Routed(p.x, found if len(p.x) < 4 else lists(found), gates)

    def experts_up(rows: Tensor, _: Experts, taken: Taken, *__: object, shared: SharedProduct | None) -> Tensor:
        within.append(shared is not None)
        if shared is not None:
            shared.rows.copy_(ops.act_and_mul(ops.linear(Product(rows, *shared.expert)), "silu"))
        taken = lists(taken)
        return layer.gate.apply(layer.up.grouped(rows.index_select(0, taken.sources), taken.starts))

    def experts_down(
        inner: Tensor, _: Experts, taken: Taken, out: Tensor, *, shared: Tensor | SharedProduct, **others: Any
    ) -> Tensor:
        within.append(isinstance(shared, SharedProduct))
        made = ops.linear(Product(shared.rows, *shared.expert)) if isinstance(shared, SharedProduct) else shared
        taken = lists(taken)
        parts = layer.down.grouped(inner, taken.starts)
        return ops.combine(parts, taken, out, shared=made, **others)

    for fake in (route_rows, experts_up, experts_down):
        monkeypatch.setattr(ops, fake.__name__, fake)
    found, wanted = layer._apply_on_gpu(Input(x), torch.empty_like(x), x, 0.25), x.clone()
    assert within == [wanted_within] * 2
    assert layer.add_scaled(Input(x.clone()), wanted, 0.25)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_a_row_that_is_no_number_spoils_itself_alone() -> None:
    layer, x = mixture(torch.float32, ROUTINGS[0]), made(20, HIDDEN, seed=15) * 9
    whole = layer.apply(Input(x))
    broken = x.clone()
    broken[7] = torch.nan
    broken[9, 0] = torch.inf
    found, others = layer.apply(Input(broken)), [row for row in range(20) if row not in (7, 9)]
    assert found[7].isnan().all()
    assert torch.equal(found[others], whole[others])


def test_no_rows_are_no_work() -> None:
    layer = mixture(torch.float32, ROUTINGS[0])
    assert layer.apply(Input(torch.empty(0, HIDDEN))).shape == (0, HIDDEN)


def test_a_mixture_names_its_products() -> None:
    names = ["router", "experts: gate, up", "experts: down", "shared: gate, up", "shared: down", "shared: gate of rows"]
    whole, bare = mixture(torch.float32, ROUTINGS[0]), mixture(torch.float32, ROUTINGS[0], shared=False)
    assert list(whole.products()) == names
    assert list(bare.products()) == names[:3]
    assert whole.nbytes == sum(linear.nbytes for linear in whole.products().values())
