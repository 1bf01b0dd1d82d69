"""Mixtures of experts on a GPU: routing, products and sums against float64, alone as in a batch, in graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels import ops, reference
from octavo_kernels.experts import gpu
from octavo_kernels.experts.gpu import Ungated
from octavo_kernels.operands import RmsNorm
from octavo_kernels.ops import Assignments, Experts, Gate, Routed, RouterLogits, RouterProduct, Routing, Taken

from .test_experts import ROUTINGS, experts_of, logits_for

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

HALF = [torch.bfloat16, torch.float16]
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
SIZES = [  # experts, chosen, hidden, width
    (128, 8, 2048, 768),
    (8, 2, 4096, 1792),
    (64, 8, 2880, 360),
    (60, 4, 136, 72),
    (300, 10, 1032, 64),
]
ROWS = [1, 2, 7, 8, 9, 33, 64, 65, 200, 1000]


def counters() -> Tensor:
    return torch.zeros(gpu.COUNTERS, dtype=torch.int32, device="cuda")


def routed(logits: Tensor, routing: Routing, **more: object) -> Routed:
    """By a router whose product is these logits."""
    rows, experts = logits.shape
    width = -(-rows // 8) * 8
    router = torch.zeros(experts, width)
    router[:, :rows] = logits.T
    x = torch.eye(width)[:rows].bfloat16().cuda()
    return ops.route_rows(RouterProduct(x, router.cuda(), routing, counters(), **more))  # type: ignore[arg-type]


def assert_same_lists(got: Assignments, wanted: Assignments) -> None:
    for name in ("places", "sources", "starts"):
        assert torch.equal(getattr(got, name).cpu(), getattr(wanted, name)), name


class AnyMixture:
    """Rows, their routing, and what experts' matrices of any form make of them."""

    routing: Routing
    up: Experts
    down: Experts
    router: Tensor
    norm: RmsNorm
    counters: Tensor
    hidden: int
    dtype: torch.dtype
    kind: Gate | Ungated = "silu"
    uniform: bool

    def rows(self, count: int) -> Tensor:
        return torch.randn(count, self.hidden, device="cuda").to(self.dtype)

    def route(self, x: Tensor, slots: Tensor | None = None) -> Routed:
        return ops.route_rows(
            RouterProduct(
                x, self.router, self.routing, self.counters, norm=self.norm, slots=slots, uniform=self.uniform,
                few=self.up.few,
            )
        )  # fmt: skip

    def apply(self, x: Tensor, residual: Tensor | None = None, slots: Tensor | None = None) -> Tensor:
        found = self.route(x, slots)
        inner = ops.experts_up(found.rows, self.up, found.taken, self.kind)
        return ops.experts_down(inner, self.down, found.taken, residual=residual)

    def activated(self, product: Tensor) -> Tensor:
        return product.clamp(min=0).square() if self.kind == "relu2" else reference.act_and_mul(product, self.kind)


class Mixture(AnyMixture):
    """Random matrices of a size, and the rows' experts in float64."""

    def __init__(
        self,
        size: tuple[int, ...],
        dtype: torch.dtype,
        *,
        biased: bool = False,
        uniform: bool = False,
        kind: Gate | Ungated = "silu",
    ) -> None:
        self.experts, self.chosen, hidden, width = size
        self.kind, self.uniform, halves = kind, uniform, 1 if kind == "relu2" else 2
        self.routing = Routing(self.experts, self.chosen, normalised=True)
        torch.manual_seed(hidden)
        made = [
            torch.randn(self.experts * halves * width, hidden) / hidden**0.5,
            torch.randn(self.experts * hidden, width),
        ]
        made[1] /= width**0.5
        matrices = [m.to(dtype).cuda() for m in made]
        biases = [torch.randn(len(m), device="cuda").to(dtype) if biased else None for m in matrices]
        self.up, self.down = (Experts(m, b) for m, b in zip(matrices, biases, strict=True))
        self.router = torch.randn(self.experts, hidden, device="cuda") / hidden**0.5
        self.norm = RmsNorm((torch.rand(hidden, device="cuda") + 0.5).to(dtype))
        self.counters = counters()
        self.hidden, self.dtype = hidden, dtype

    def expected(self, rows: Tensor, taken: Taken) -> Tensor:
        taken = ops.listed(taken)
        chosen = experts_of(Assignments(*(t.cpu() for t in taken))).cuda()
        total = torch.zeros(len(rows), self.hidden, dtype=torch.float64, device="cuda")
        for e in chosen.unique().tolist():
            up, down = (part_of(matrix, e, self.experts) for matrix in (self.up, self.down))
            which, place = (chosen == e).nonzero(as_tuple=True)
            made = reference.linear(rows[which].double(), *up).to(self.dtype).double()
            inner = self.activated(made).to(self.dtype).double()
            term = reference.linear(inner, *down).to(self.dtype).double()
            total.index_add_(0, which, taken.weights[which, place].double()[:, None] * term)
        return total


def part_of(matrix: Experts, expert: int, experts: int) -> tuple[Tensor, Tensor | None]:
    rows = len(matrix.weight) // experts
    part = slice(expert * rows, (expert + 1) * rows)
    return matrix.weight[part].double(), None if matrix.bias is None else matrix.bias[part].double()


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
def test_rows_take_the_experts_that_they_take_on_a_cpu(routing: Routing, corrected: bool) -> None:
    logits = logits_for(routing)
    for count in (1, 60, 300, 2000):
        many = logits.repeat(-(-count // len(logits)), 1)[:count]
        correction = torch.randn(routing.experts, generator=torch.Generator().manual_seed(9)) if corrected else None
        found = routed(many, routing, correction=None if correction is None else correction.cuda()).taken
        assert isinstance(found, RouterLogits if count <= gpu.FEW_ROWS else Assignments)
        got = ops.listed(found)
        wanted = ops.route(many, routing, correction)
        assert_same_lists(got, wanted)
        torch.testing.assert_close(got.weights.cpu(), wanted.weights, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
def test_logits_that_are_no_numbers_choose_experts_all_the_same(routing: Routing) -> None:
    logits = torch.randn(5, routing.experts)
    logits[0], logits[2], logits[3] = torch.nan, torch.inf, -torch.inf
    logits[1, 3], logits[4, ::2] = torch.nan, torch.inf
    for row in logits:
        got = ops.listed(routed(torch.zeros(1, routing.experts), routing, bias=row.cuda()).taken)
        assert_same_lists(got, ops.route(row[None], routing))


@pytest.mark.parametrize("rows", [3, 24, 64, 100, 3000])
def test_padding_is_in_no_list(rows: int) -> None:
    logits, slots = torch.randn(rows, 16), torch.arange(rows)
    slots[1 if rows == 3 else 5 :: 3] = -1
    real = slots >= 0
    got = ops.listed(routed(logits, Routing(16, 2), slots=slots.cuda()).taken)
    wanted = ops.route(logits[real], Routing(16, 2))
    assert torch.equal(got.starts.cpu(), wanted.starts)
    assert torch.equal(got.places.cpu()[real], wanted.places)
    assert (got.places.cpu()[~real] == -1).all()
    sources = slots[real][wanted.sources.long()].int()
    assert torch.equal(got.sources[: int(got.starts[-1])].cpu(), sources)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("routing", [*ROUTINGS, Routing(300, 5, normalised=True)], ids=str)
def test_products_of_a_few_rows_choose_as_lists_have_it(routing: Routing, corrected: bool) -> None:
    """To the bit, of whole numbers, whose products are exact in any order."""
    torch.manual_seed(routing.experts)
    experts, logits = routing.experts, logits_for(routing)[: gpu.FEW_ROWS].cuda()
    correction, factors = (torch.rand(experts, device="cuda") if corrected else None for _ in range(2))
    x, up, down = (torch.randint(-2, 3, (n, 8)).bfloat16().cuda() for n in (len(logits), experts * 8, experts * 8))
    for padding in range(gpu.FEW_ROWS + 1):
        slots = -(torch.arange(len(logits), device="cuda") == padding).long()
        found = RouterLogits(logits, routing, correction, factors, slots)
        got, wanted = (
            ops.experts_down(ops.experts_up(x, Experts(up), taken, "relu2"), Experts(down), taken)
            for taken in (found, ops.listed(found))
        )
        assert torch.equal(got, wanted)
        assert padding == len(logits) or not got[padding].any()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("uniform", [False, True])
def test_mixtures(size: tuple[int, ...], dtype: torch.dtype, uniform: bool) -> None:
    mixture = Mixture(size, dtype, biased=size[0] % 8 == 4, uniform=uniform)
    for count in ROWS:
        x, residual = mixture.rows(count), mixture.rows(count)
        found = mixture.route(x)
        normed = ops.rms_norm(x, mixture.norm.weight, mixture.norm.eps)
        assert torch.equal(found.rows, normed)
        wanted = mixture.expected(found.rows, found.taken) + residual.double()
        got = mixture.apply(x, residual)
        torch.testing.assert_close(got.double(), wanted, atol=6 * ROUNDING[dtype], rtol=4 * ROUNDING[dtype])


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("size", [(128, 6, 2688, 1856), (60, 4, 136, 72), (40, 3, 264, 24)], ids=str)
def test_mixtures_without_a_gate(size: tuple[int, ...], uniform: bool) -> None:
    """The first is Nemotron-3-Nano's."""
    mixture = Mixture(size, torch.bfloat16, biased=size[0] == 60, uniform=uniform, kind="relu2")
    for count in ROWS:
        x, residual = mixture.rows(count), mixture.rows(count)
        found = mixture.route(x)
        wanted = mixture.expected(found.rows, found.taken) + residual.double()
        off = (mixture.apply(x, residual).double() - wanted).norm(dim=1)
        assert (off <= 3 * ROUNDING[torch.bfloat16] * wanted.norm(dim=1)).all()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_row_is_as_if_it_were_alone_if_uniform(size: tuple[int, ...]) -> None:
    mixture = Mixture(size, torch.bfloat16, uniform=True)
    x = mixture.rows(700)
    together = mixture.apply(x)
    for some in (slice(0, 1), slice(699, 700), slice(5, 69), slice(100, 400)):
        assert torch.equal(mixture.apply(x[some]), together[some])


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_of_a_few_rows_each_is_as_if_it_were_alone(size: tuple[int, ...]) -> None:
    mixture = Mixture(size, torch.bfloat16)
    x = mixture.rows(gpu.FEW_ROWS)
    together = mixture.apply(x)
    for some in (slice(0, 1), slice(gpu.FEW_ROWS - 1, gpu.FEW_ROWS), slice(1, gpu.FEW_ROWS)):
        assert torch.equal(mixture.apply(x[some]), together[some])


@pytest.mark.parametrize("count", [3, 40, 300])
def test_rows_feel_nothing_of_each_other_or_of_padding(count: int) -> None:
    mixture = Mixture(SIZES[3], torch.bfloat16)
    x, slots = mixture.rows(count), torch.arange(count, device="cuda")
    slots[1::2] = -1
    expected = mixture.apply(x, slots=slots)
    assert not expected[1::2].any()
    x[1::2] = float("nan")
    assert torch.equal(mixture.apply(x, slots=slots)[::2], expected[::2])
    slots[::2] = -1
    assert not mixture.apply(x, slots=slots).any()


def assert_replayed_with_other_routing(mixture: AnyMixture, count: int) -> None:
    """Several layers, each of which may begin before the one before it has ended."""
    x = mixture.rows(count)
    slots = torch.arange(count, device="cuda")

    def layers() -> Tensor:
        hidden = x
        for _ in range(4):
            hidden = mixture.apply(hidden, hidden, slots)
        return hidden

    layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layers()
    for seed in range(4):
        torch.manual_seed(seed)
        x.copy_(mixture.rows(count))
        slots[1:] = torch.arange(1, count, device="cuda") if seed % 2 else -1
        graph.replay()
        replayed = out.clone()
        assert torch.equal(replayed, layers())
    assert not mixture.counters.any()


@pytest.mark.parametrize("count", [1, 3, 8, 64, 65, 500])
@pytest.mark.parametrize("uniform", [False, True])
def test_a_graph_is_replayed_with_other_routing(count: int, uniform: bool) -> None:
    mixture = Mixture(SIZES[0], torch.bfloat16, uniform=uniform)
    assert_replayed_with_other_routing(mixture, count)


@pytest.mark.parametrize("count", [1, 16, 200])
def test_a_shared_expert_and_its_gate(count: int) -> None:
    mixture = Mixture(SIZES[0], torch.bfloat16)
    x, shared, residual = (mixture.rows(count) for _ in range(3))
    gate = torch.randn(1, mixture.hidden, device="cuda") / mixture.hidden**0.5
    found = ops.route_rows(RouterProduct(x, mixture.router, mixture.routing, mixture.counters, gate=gate))
    assert found.gates is not None
    torch.testing.assert_close(
        found.gates.double(), (x.double() @ gate.double().T).sigmoid()[:, 0], rtol=1e-5, atol=1e-6
    )
    inner = ops.experts_up(found.rows, mixture.up, found.taken, "silu")
    got = ops.experts_down(inner, mixture.down, found.taken, shared=shared, gates=found.gates, residual=residual)
    wanted = mixture.expected(x, found.taken) + found.gates.double()[:, None] * shared.double() + residual.double()
    torch.testing.assert_close(got.double(), wanted, atol=6 * 2**-8, rtol=4 * 2**-8)


def test_what_does_not_fit_is_refused() -> None:
    mixture = Mixture(SIZES[3], torch.bfloat16)
    x = mixture.rows(3)
    with pytest.raises(TypeError, match="x must be bfloat16 or float16"):
        mixture.route(x.float())
    with pytest.raises(ValueError, match="counters must have shape"):
        ops.route_rows(RouterProduct(x, mixture.router, mixture.routing, counters()[:1]))
    taken = mixture.route(x).taken
    with pytest.raises(ValueError, match="weight must have shape"):
        ops.experts_up(x[:, :64], mixture.up, taken, "silu")
    with pytest.raises(ValueError, match="no GPU kernel"):
        ops.experts_up(x[:, :60].contiguous(), Experts(mixture.up.weight[:, :60].contiguous()), taken, "silu")
