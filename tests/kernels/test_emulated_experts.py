"""The source of the GPU kernels for mixtures of experts, run on the CPU with threads and copies in a random order.

What this shows: the choice among experts, which rows and weights meet, that nothing is read before it is there, and
that no thread waits for ever. What it does not: speed, and orders that only memory of a GPU can show.
test_cuda_mixtures.py runs them on one.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels import ops, reference
from octavo_kernels.operands import RmsNorm
from octavo_kernels.ops import Assignments, RouterLogits, Routing
from octavo_worker.model.layers.mixture import assigned_to

from .emulated_experts import EmulatedExperts, unlisted
from .test_experts import ROUTINGS, experts_of, logits_for

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

WAYS = {"few": False, "many": True}
FEW_ROWS = 8  # at most
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedExperts:
    return EmulatedExperts(tmp_path_factory.mktemp("experts"))


def identity(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and a router whose product is these logits, to the bit."""
    rows, experts = logits.shape
    width = -(-rows // 8) * 8
    x = torch.eye(width)[:rows].bfloat16()
    router = torch.zeros(experts, width)
    router[:, :rows] = logits.T
    return x, router


def taken_by(ids: list[list[int]], experts: int) -> Assignments:
    """Rows that take these experts, with weights that differ; an empty row is padding."""
    logits = torch.full((len(ids), experts), -9.0)
    chosen = max(map(len, ids))
    for row, own in enumerate(ids):
        logits[row, own] = torch.linspace(0.0, 1.0, len(own)) if own else -9.0
    taken = ops.route(logits, Routing(experts, chosen, normalised=True))
    if all(ids):
        return taken
    real = [row for row, own in enumerate(ids) if own]
    some = taken_by([ids[row] for row in real], experts)
    places = torch.full_like(taken.places, -1)
    places[real] = some.places
    weights = torch.zeros_like(taken.weights)
    weights[real] = some.weights
    sources = torch.full_like(taken.sources, 77)
    sources[: len(some.sources)] = torch.tensor(real, dtype=torch.int32)[some.sources.long()]
    return Assignments(weights, places, sources, some.starts)


def expected_up(x, weight, taken, activation="silu", bias=None, clamped=None):
    """In float64, of products that are rounded once; by place. "relu2" has no gate."""
    columns = len(weight) // (len(taken.starts) - 1)
    made = torch.full((int(taken.starts[-1]), columns), float("nan"), dtype=torch.float64)
    for e, (begin, end) in enumerate(zip(taken.starts[:-1].tolist(), taken.starts[1:].tolist(), strict=True)):
        part = slice(e * columns, (e + 1) * columns)
        own = None if bias is None else bias[part].double()
        made[begin:end] = reference.linear(x[taken.sources[begin:end].long()].double(), weight[part].double(), own)
    made = made.to(x.dtype).double()
    if activation == "relu2":
        return made.clamp(min=0).square()
    if clamped is not None:
        gate, up = made.chunk(2, dim=1)
        made = torch.cat((gate.clamp(max=clamped), (up.clamp(-clamped, clamped) + 1).to(x.dtype).double()), dim=1)
    return reference.act_and_mul(made, activation)


def expected_down(x, weight, taken, bias=None, shared=None, gates=None, factor=1.0, residual=None):
    columns = len(weight) // (len(taken.starts) - 1)
    sums = torch.zeros(len(taken.places), columns, dtype=torch.float64)
    by_place = dict(zip(taken.places.flatten().tolist(), taken.weights.flatten().tolist(), strict=True))
    for e, (begin, end) in enumerate(zip(taken.starts[:-1].tolist(), taken.starts[1:].tolist(), strict=True)):
        part = slice(e * columns, (e + 1) * columns)
        own = None if bias is None else bias[part].double()
        made = reference.linear(x[begin:end].double(), weight[part].double(), own).to(x.dtype).double()
        for place in range(begin, end):
            sums[int(taken.sources[place])] += by_place[place] * made[place - begin]
    if shared is not None:
        sums += shared.double() * (1.0 if gates is None else gates.double()[:, None])
    return factor * sums if residual is None else factor * sums + residual.double()


def assert_close(got, wanted, dtype):
    torch.testing.assert_close(got.double(), wanted, rtol=4 * ROUNDING[dtype], atol=4 * ROUNDING[dtype])


# Which experts rows take.


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_rows_take_the_experts_that_they_take_on_a_cpu(emulated, routing, corrected):
    logits = logits_for(routing)
    x, router = identity(logits)
    emulated.set_up(4, routing.experts)
    correction = torch.randn(routing.experts, generator=torch.Generator().manual_seed(9)) if corrected else None
    got = emulated.route(x, router, routing, correction=correction)
    assert torch.equal(got.logits, logits)
    wanted = ops.route(logits, routing, correction)
    assert torch.equal(got.taken.places, wanted.places)
    assert torch.equal(got.taken.sources, wanted.sources)
    assert torch.equal(got.taken.starts, wanted.starts)
    torch.testing.assert_close(got.taken.weights, wanted.weights, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_logits_that_are_no_numbers_choose_experts_all_the_same(emulated, routing):
    logits = torch.randn(5, routing.experts)
    logits[0], logits[2], logits[3] = torch.nan, torch.inf, -torch.inf
    logits[1, 3], logits[4, ::2] = torch.nan, torch.inf
    x, router = identity(torch.zeros_like(logits))
    emulated.set_up(2, 1)
    for row in range(5):  # a bias: what is no number in a router is in every row's product
        got = emulated.route(x[:1], router, routing, bias=logits[row].contiguous()).taken
        wanted = ops.route(logits[row : row + 1], routing)
        assert torch.equal(got.places, wanted.places)
        assert torch.equal(got.starts, wanted.starts)


def test_of_more_rows_than_bits_of_a_word_and_of_thousands_the_lists_are_the_same(emulated):
    routing = Routing(40, 3, normalised=True)
    for rows in (1, 33, 64, 65, 90):
        logits = torch.randn(rows, 40, generator=torch.Generator().manual_seed(rows))
        x, router = identity(logits)
        emulated.set_up(3, rows)
        got, wanted = emulated.route(x, router, routing).taken, ops.route(logits, routing)
        assert torch.equal(got.places, wanted.places)
        assert torch.equal(got.sources, wanted.sources)
        assert torch.equal(got.starts, wanted.starts)


@pytest.mark.parametrize("rows", [24, 100])
def test_padding_is_in_no_list(emulated, rows):
    routing = Routing(16, 2)
    logits = torch.randn(rows, 16)
    slots = torch.arange(rows)
    slots[5::3] = -1
    real = slots >= 0
    x, router = identity(logits)
    emulated.set_up(2, rows)
    got, wanted = emulated.route(x, router, routing, slots=slots).taken, ops.route(logits[real], routing)
    assert torch.equal(got.starts, wanted.starts)
    assert torch.equal(got.places[real], wanted.places)
    assert (got.places[~real] == -1).all()
    assert (got.weights[~real] == 0).all()
    assert torch.equal(got.sources[: int(got.starts[-1])], slots[real][wanted.sources.long()].int())


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize(("width", "rows"), [(8, 1), (264, 3), (2048, 2), (2056, 9), (8200, 2)])
def test_the_norm_of_rows_and_the_shared_experts_gate(emulated, width, rows, uniform):
    """In front of the product; a row does not depend on the others."""
    torch.manual_seed(width)
    dtype, offset = (torch.float16, 1.0) if rows == 3 else (torch.bfloat16, 0.0)
    x, router, gate = torch.randn(rows, width).to(dtype), torch.randn(20, width), torch.randn(1, width) / width**0.5
    norm, routing = RmsNorm((torch.rand(width) + 0.5).to(dtype), 1e-5, offset), Routing(20, 2)
    emulated.set_up(2, rows)
    got = emulated.route(x * 3, router, routing, norm=norm, gate=gate, uniform=uniform)
    normed = ops.rms_norm(x * 3, norm.weight, norm.eps, offset=offset)
    torch.testing.assert_close(got.normed, normed, rtol=2 * ROUNDING[dtype], atol=0)
    wide = got.normed.double()
    torch.testing.assert_close(got.logits.double(), wide @ router.double().T, rtol=1e-5, atol=1e-6 * width**0.5)
    torch.testing.assert_close(got.gates.double(), (wide @ gate.double().T).sigmoid()[:, 0], rtol=1e-5, atol=1e-6)
    alone = emulated.route(x[-1:] * 3, router, routing, norm=norm, gate=gate, uniform=uniform)
    assert torch.equal(alone.normed[0], got.normed[-1])
    assert torch.equal(alone.logits[0], got.logits[-1])


@pytest.mark.parametrize(("rows", "uniform"), [(40, False), (70, True)])
def test_rows_are_routed_as_if_they_were_alone(emulated, rows, uniform):
    torch.manual_seed(2)
    x, router, routing = torch.randn(rows, 136).half(), torch.randn(130, 136), Routing(130, 5, normalised=True)
    emulated.set_up(4, 5)
    together = emulated.route(x, router, routing, uniform=uniform)
    for row in (0, rows - 1):
        alone = emulated.route(x[row : row + 1], router, routing, uniform=uniform)
        assert torch.equal(alone.logits[0], together.logits[row])
        assert torch.equal(alone.taken.weights[0], together.taken.weights[row])
        assert torch.equal(experts_of(alone.taken)[0], experts_of(together.taken)[row])


def test_routing_of_a_few_rows_leaves_the_choice_to_the_products(emulated):
    torch.manual_seed(4)
    x, router, gate = torch.randn(3, 136).bfloat16(), torch.randn(20, 136), torch.randn(1, 136)
    routing, norm = Routing(20, 2), RmsNorm((torch.rand(136) + 0.5).bfloat16(), 1e-5)
    emulated.set_up(2, 3)
    got, wanted = (emulated.route(x, router, routing, norm=norm, gate=gate, listed=listed) for listed in (False, True))
    for name in ("logits", "normed", "gates"):
        assert torch.equal(getattr(got, name), getattr(wanted, name))
    assert (got.taken.places == -7).all()


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("routing", [*ROUTINGS, Routing(300, 5, normalised=True)])
def test_products_of_a_few_rows_choose_as_lists_have_it(emulated, routing, corrected):
    """To the bit, of whole numbers, whose products are exact in any order. A row is padding."""
    experts, rows = routing.experts, FEW_ROWS if routing.experts <= 32 else 3
    logits = logits_for(routing)[:rows].contiguous()
    torch.manual_seed(experts)
    correction, factors = torch.randn(experts) if corrected else None, torch.rand(experts) if corrected else None
    found = RouterLogits(logits, routing, correction, factors, -(torch.arange(rows) == 1).long())
    x, up, down = (torch.randint(-2, 3, (n, 8)).bfloat16() for n in (rows, experts * 8, experts * 8))
    emulated.set_up(3, experts)
    taken = emulated.listed(found)
    total = int(taken.starts[-1])
    assert total == (rows - 1) * routing.chosen
    inner = emulated.up(x, up, found, "relu2", many=False)
    assert torch.equal(inner[:total], emulated.up(x, up, taken, "relu2", many=True)[:total])
    assert inner[total:].isnan().all()
    got = emulated.down(inner, down, found, many=False)
    assert torch.equal(got, emulated.down(inner.nan_to_num(), down, taken, many=True))
    if factors is None:
        return
    bare = emulated.listed(found._replace(factors=None))
    assert torch.equal(taken.weights, bare.weights * factors[experts_of(bare).clamp(max=experts - 1)])


# Products of experts.

SIZES = [  # experts, chosen, rows, hidden, width
    (5, 2, 1, 64, 24),
    (4, 2, 9, 40, 72),  # no whole windows of the depth; more rows of an expert than a tile has
    (3, 1, 64, 1032, 16),  # two pieces
    (9, 3, 20, 2112, 8),  # three, and the ring goes round
    (40, 4, 30, 72, 136),
]


def case(size, dtype=torch.bfloat16, biased=False, *, many=True):
    experts, chosen, rows, hidden, width = size
    rows = rows if many else min(rows, FEW_ROWS)
    torch.manual_seed(rows + hidden)
    taken = ops.route(torch.randn(rows, experts), Routing(experts, chosen, normalised=True))
    x = torch.randn(rows, hidden).to(dtype)
    up = (torch.randn(experts * 2 * width, hidden) / hidden**0.5).to(dtype)
    down = (torch.randn(experts * hidden, width) / width**0.5).to(dtype)
    biases = [torch.randn(len(m)).to(dtype) if biased else None for m in (up, down)]
    return taken, x, up, down, biases


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_and_sums(emulated, size, way):
    dtype = torch.float16 if size[2] == 20 else torch.bfloat16
    taken, x, up, down, (up_bias, down_bias) = case(size, dtype, biased=size[2] % 2 == 0, many=WAYS[way])
    emulated.set_up(3, size[2])
    inner = emulated.up(x, up, taken, many=WAYS[way], bias=up_bias)
    assert_close(inner, expected_up(x, up, taken, bias=up_bias), dtype)
    residual, shared, gates = torch.randn_like(x), torch.randn_like(x), torch.rand(len(x))
    whole = {"shared": shared, "gates": gates, "factor": 0.22, "residual": residual}
    kinds = ({"residual": residual}, {"shared": shared}, {"factor": 3.0}, whole)
    for more in kinds if size[2] == 9 else kinds[-1:]:
        got = emulated.down(inner, down, taken, many=WAYS[way], bias=down_bias, **more)
        assert_close(got, expected_down(inner, down, taken, bias=down_bias, **more), dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "gelu_quick"])
def test_activations_and_clamps(emulated, activation, way):
    taken, x, up, _, _ = case((4, 2, 6, 64, 40))
    emulated.set_up(2, 8)
    for clamped in (None, 1.5) if activation == "silu" else (None,):
        got = emulated.up(x * 4, up, taken, activation, many=WAYS[way], clamped=clamped)
        assert_close(got, expected_up(x * 4, up, taken, activation, clamped=clamped), x.dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [(5, 2, 9, 64, 12), (3, 1, 64, 1032, 16), (40, 4, 30, 72, 136)], ids=str)
def test_experts_without_a_gate(emulated, size, way):
    """Columns that are no whole units or tiles, too."""
    taken, x, up, _, (bias, _) = case(size, biased=size[2] % 2 == 0, many=WAYS[way])
    emulated.set_up(3, size[2])
    got = emulated.up(x, up, taken, "relu2", many=WAYS[way], bias=bias)
    wanted = expected_up(x, up, taken, "relu2", bias=bias)
    assert got.shape == wanted.shape
    assert_close(got, wanted, x.dtype)
    x[3] = torch.nan
    odd = (taken.sources == 3)[:, None]
    assert torch.equal(emulated.up(x, up, taken, "relu2", many=WAYS[way], bias=bias).isnan(), odd.expand_as(got))


LISTS = {
    "all rows take one expert": [[3]] * 50,
    "one row each": [[e] for e in range(8)],
    "the first and the last": [[0, 7]] * 11,
    "padding between": [[1, 2], [], [2, 5], [], [], [0, 1], []],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LISTS)
def test_uneven_lists(emulated, name, way):
    taken = taken_by(LISTS[name] if WAYS[way] else LISTS[name][:FEW_ROWS], 8)
    rows = len(taken.places)
    x, up, down = (
        torch.randn(rows, 72).bfloat16(),
        torch.randn(8 * 48, 72).bfloat16(),
        torch.randn(8 * 72, 24).bfloat16(),
    )
    emulated.set_up(3, rows)
    inner = emulated.up(x / 9, up, taken, many=WAYS[way])
    total = int(taken.starts[-1])
    assert_close(inner[:total], expected_up(x / 9, up, taken), x.dtype)
    assert inner[total:].isnan().all()
    residual = torch.randn_like(x)
    got = emulated.down(inner[:total] / 5, down, taken, many=WAYS[way], residual=residual)
    assert_close(got, expected_down(inner[:total] / 5, down, taken, residual=residual), x.dtype)


@pytest.mark.parametrize("way", WAYS)
def test_a_rows_bits_do_not_depend_on_the_rows_that_its_expert_has(emulated, way):
    torch.manual_seed(3)
    rows = 60 if WAYS[way] else FEW_ROWS
    x, up, down = (
        torch.randn(rows, 136).bfloat16(),
        torch.randn(6 * 80, 136).bfloat16() / 12,
        torch.randn(6 * 136, 40).bfloat16(),
    )
    logits = torch.randn(rows, 6)
    emulated.set_up(3, 3)

    def mixture(some: slice) -> Tensor:
        taken = ops.route(logits[some], Routing(6, 2))
        return emulated.down(emulated.up(x[some], up, taken, many=WAYS[way]), down, taken, many=WAYS[way])

    together = mixture(slice(0, rows))
    for some in (slice(0, 1), slice(rows - 1, rows), slice(rows // 8, rows // 3)):
        assert torch.equal(mixture(some), together[some])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("some", [range(2), range(2, 9)], ids=str)
def test_a_rank_takes_its_own_experts_alone(emulated, way, some):
    """With their matrices, in lists of all; nothing reads what other ranks would have stored."""
    taken, x, up, down, (up_bias, down_bias) = case((9, 3, 20, 64, 24), biased=True, many=WAYS[way])
    listed = assigned_to(some, taken)
    own = listed if WAYS[way] else assigned_to(some, unlisted(taken))
    part = [m[some.start * (len(m) // 9) : some.stop * (len(m) // 9)] for m in (up, down, up_bias, down_bias)]
    first, last = listed.starts[0].item(), listed.starts[-1].item()
    emulated.set_up(3, 5)
    inner = emulated.up(x, part[0], own, many=WAYS[way], bias=part[2])
    assert_close(inner[first:last], expected_up(x, up, taken, bias=up_bias)[first:last], x.dtype)
    residual = torch.randn_like(x)
    got = emulated.down(inner, part[1], own, many=WAYS[way], bias=part[3], residual=residual)
    alone = taken._replace(weights=taken.weights * (listed.places >= 0))
    wanted = expected_down(inner.nan_to_num(), down, alone, bias=down_bias, residual=residual)
    assert_close(got, wanted, x.dtype)


def test_what_the_kernels_do_not_take_they_refuse(emulated):
    taken, x, up, down, _ = case((4, 2, 6, 64, 40))
    emulated.set_up(2, 1)
    with pytest.raises(ValueError, match="up_few"):
        emulated.up(x[:, :60], up[:, :60], taken, many=False)
    with pytest.raises(ValueError, match="up_few"):
        emulated.up(torch.randn(9, 64).bfloat16(), up, ops.route(torch.randn(9, 4), Routing(4, 2)), many=False)
    with pytest.raises(ValueError, match="up_many"):
        emulated.up(x, up, taken, "relu", many=True)
    with pytest.raises(ValueError, match="down_few"):
        emulated.down(x[:, :36], down[:, :36], taken, many=False)
    with pytest.raises(ValueError, match="route"):
        emulated.route(torch.randn(2, 60).bfloat16(), torch.randn(8, 60), Routing(8, 2))
