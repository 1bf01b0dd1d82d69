"""The source of the GPU kernels for experts of codes, run on the CPU with threads and copies in a random order.

What this shows: which code, scale, zero point and row meet, that nothing is read before it is there, and that no thread
waits for ever. What it does not: speed, and orders that only memory of a GPU can show. test_cuda_coded_mixtures.py
runs them on one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.experts.coded import pack_experts
from octavo_kernels.ops import Routing
from octavo_kernels.products.coded import CodedWeight, lay_out
from octavo_kernels.products.weights import Codes, QuantisedWeight, dequantise
from octavo_worker.model.layers.mixture import assigned_to

from .coded_weights import FORM_NAMES, FORMS, random_weight
from .emulated_coded_experts import EmulatedCodedExperts
from .emulated_experts import unlisted
from .test_emulated_experts import LISTS, WAYS, assert_close, expected_down, expected_up, taken_by

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

INTEGERS = (Codes.INT4, Codes.INT8)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedCodedExperts:
    return EmulatedCodedExperts(tmp_path_factory.mktemp("coded_experts"))


def matrix(
    form: tuple[Codes, int], columns: int, depth: int, zeros: bool = False, short: bool = False
) -> tuple[CodedWeight, dict[bool, Tensor]]:
    """And what it stands for: many rows meet numbers that are rounded to the type of x, a few meet the codes. `short`:
    scales are numbers of bfloat16, and stored so."""
    weight = random_weight(*form, columns, depth, zeros=zeros)
    if short:
        weight.scales.copy_(weight.scales.bfloat16())
    exact, coded = dequantise(weight), lay_out(weight)
    if short:
        coded = pack_experts(coded)
        assert coded.scales.dtype is torch.bfloat16
    return coded, {True: exact.bfloat16(), False: exact}


def biases(*columns: int) -> list[Tensor]:
    return [torch.randn(n).bfloat16() for n in columns]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)
def test_every_form_of_codes(emulated, form, way):
    many, (experts, hidden, width) = WAYS[way], (3, 272, 144)
    taken = ops.route(torch.randn(7, experts), Routing(experts, 2, normalised=True))
    for zeros in {False, form[0] in INTEGERS}:
        torch.manual_seed(form[1] % 97)
        x, residual = torch.randn(7, hidden).bfloat16(), torch.randn(7, hidden).bfloat16()
        up, exact_up = matrix(form, experts * 2 * width, hidden, zeros)
        down, exact_down = matrix(form, experts * hidden, width, zeros)
        for dtype in (torch.bfloat16, torch.float16):
            x, residual, bias = x.to(dtype), residual.to(dtype), [b.to(dtype) for b in biases(up.columns, down.columns)]
            emulated.set_up(2, form[1] % 89)
            inner = emulated.up(x, up, taken, many=many, bias=bias[0])
            wanted = exact_up[False].to(dtype) if many else exact_up[False]
            assert_close(inner, expected_up(x, wanted, taken, bias=bias[0]), dtype)
            got = emulated.down(inner, down, taken, many=many, bias=bias[1], residual=residual)
            wanted = exact_down[False].to(dtype) if many else exact_down[False]
            assert_close(got, expected_down(inner, wanted, taken, bias=bias[1], residual=residual), dtype)


SHORT = [(Codes.INT4, 128), (Codes.INT4, 64), (Codes.INT4, 32), (Codes.FP4, 32), (Codes.FP8, 128)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", SHORT, ids=str)
def test_short_scales_give_the_bits_of_long_ones(emulated, form, way):
    """In the type that they have, and in the other. Short scales of four-bit floats are in the weights that a few rows
    in bfloat16 meet, long ones multiply sums of groups."""
    taken = ops.route(torch.randn(7, 3), Routing(3, 2, normalised=True))
    for zeros in {False, form[0] is Codes.INT4}:
        torch.manual_seed(form[1])
        up, _ = matrix(form, 3 * 288, 272, zeros, short=True)
        down, _ = matrix(form, 3 * 272, 144, zeros, short=True)
        long = [replace(weight, scales=weight.scales.float()) for weight in (up, down)]
        for dtype in (torch.bfloat16, torch.float16):
            x = torch.randn(7, 272).to(dtype)
            emulated.set_up(2, form[1])
            inner = emulated.up(x, up, taken, many=WAYS[way])
            are_in_weights = form[0] is Codes.FP4 and dtype is torch.bfloat16 and not WAYS[way]
            same = assert_about_equal if are_in_weights else assert_equal
            same(inner, emulated.up(x, long[0], taken, many=WAYS[way]))
            got = emulated.down(inner, down, taken, many=WAYS[way])
            same(got, emulated.down(inner, long[1], taken, many=WAYS[way]))


def assert_equal(got: Tensor, wanted: Tensor) -> None:
    assert torch.equal(got, wanted)


def assert_about_equal(got: Tensor, wanted: Tensor) -> None:
    assert_close(got, wanted.double(), got.dtype)


SIZES = [  # experts, chosen, rows, hidden, width
    (5, 2, 1, 64, 48),
    (4, 2, 8, 48, 80),  # no whole bricks of the depth
    (3, 1, 5, 1072, 48),  # two pieces of a few rows' ring
    (9, 3, 7, 2128, 48),  # three, and the ring goes round
    (40, 4, 6, 80, 144),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", [(Codes.INT4, 128), (Codes.FP4, 32), (Codes.FP8, 128)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_and_sums(emulated, size, form, way):
    experts, chosen, rows, hidden, width = size
    many = WAYS[way]
    torch.manual_seed(hidden)
    taken = ops.route(torch.randn(rows, experts), Routing(experts, chosen, normalised=True))
    x, shared, residual = (torch.randn(rows, hidden).bfloat16() for _ in range(3))
    up, exact_up = matrix(form, experts * 2 * width, hidden)
    down, exact_down = matrix(form, experts * hidden, width)
    emulated.set_up(3, rows)
    inner = emulated.up(x, up, taken, many=many)
    assert_close(inner, expected_up(x, exact_up[many], taken), x.dtype)
    gates = torch.rand(rows)
    for more in ({"shared": shared}, {"shared": shared, "gates": gates, "factor": 0.22, "residual": residual}):
        got = emulated.down(inner, down, taken, many=many, **more)
        assert_close(got, expected_down(inner, exact_down[many], taken, **more), x.dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "gelu_quick"])
def test_activations_and_clamps(emulated, activation, way):
    torch.manual_seed(5)
    taken = ops.route(torch.randn(6, 4), Routing(4, 2))
    x, (bias,) = 4 * torch.randn(6, 64).bfloat16(), biases(4 * 64)
    up, exact = matrix((Codes.FP4, 32), 4 * 64, 64)
    emulated.set_up(2, 8)
    for clamped in (None, 1.5) if activation in ("silu", "gelu_quick") else (None,):
        got = emulated.up(x, up, taken, activation, many=WAYS[way], bias=bias, clamped=clamped)
        wanted = expected_up(x, exact[WAYS[way]], taken, activation, bias=bias, clamped=clamped)
        assert_close(got, wanted, x.dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", [(Codes.INT4, 128), (Codes.FP4, 32), (Codes.FP8, 128)], ids=str)
def test_experts_without_a_gate(emulated, form, way):
    """Even and odd numbers of strips, in one tile and in two."""
    taken, x = ops.route(torch.randn(8, 3), Routing(3, 2)), torch.randn(8, 144).bfloat16()
    for columns in (48, 160):
        up, exact = matrix(form, 3 * columns, 144)
        (bias,) = biases(up.columns)
        emulated.set_up(2, columns)
        got = emulated.up(x, up, taken, "relu2", many=WAYS[way], bias=bias)
        assert got.shape == (16, columns)
        assert_close(got, expected_up(x, exact[WAYS[way]], taken, "relu2", bias=bias), x.dtype)


@pytest.mark.parametrize("rows", [33, 64, 65, 300], ids=str)
def test_more_rows_of_an_expert_than_a_tile_has(emulated, rows):
    """In tiles of both sizes; a row's bits are those that it has alone."""
    torch.manual_seed(rows)
    logits, x = torch.randn(rows, 3), torch.randn(rows, 144).bfloat16()
    up, exact_up = matrix((Codes.INT4, 64), 3 * 96, 144)
    down, exact_down = matrix((Codes.INT4, 64), 3 * 144, 48)
    emulated.set_up(3, rows)

    def mixture(some: slice) -> tuple[Tensor, Tensor]:
        taken = ops.route(logits[some], Routing(3, 2))
        inner = emulated.up(x[some], up, taken, many=True)
        return inner, emulated.down(inner, down, taken, many=True)

    inner, made = mixture(slice(0, rows))
    taken = ops.route(logits, Routing(3, 2))
    assert_close(inner, expected_up(x, exact_up[True], taken), x.dtype)
    assert_close(made, expected_down(inner, exact_down[True], taken), x.dtype)
    for some in (slice(0, 1), slice(rows - 1, rows), slice(7, 20)):
        assert torch.equal(mixture(some)[1], made[some])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LISTS)
def test_uneven_lists(emulated, name, way):
    many, ids = WAYS[way], LISTS[name]
    taken = taken_by(ids if many else ids[:8], 8)
    rows = len(taken.places)
    x, residual = torch.randn(rows, 80).bfloat16(), torch.randn(rows, 80).bfloat16()
    up, exact_up = matrix((Codes.INT8, 64), 8 * 64, 80, zeros=True)
    down, exact_down = matrix((Codes.INT8, 64), 8 * 80, 32, zeros=True)
    emulated.set_up(3, rows)
    inner = emulated.up(x, up, taken, many=many)
    total = int(taken.starts[-1])
    assert_close(inner[:total], expected_up(x, exact_up[many], taken), x.dtype)
    assert inner[total:].isnan().all()
    got = emulated.down(inner, down, taken, many=many, residual=residual)
    wanted = expected_down(inner.nan_to_num(), exact_down[many], taken, residual=residual)
    assert_close(got, wanted, x.dtype)


def test_of_a_few_rows_each_is_as_if_it_were_alone(emulated):
    torch.manual_seed(3)
    x, logits = torch.randn(8, 144).bfloat16(), torch.randn(8, 6)
    up, _ = matrix((Codes.FP4, 32), 6 * 96, 144)
    down, _ = matrix((Codes.FP4, 32), 6 * 144, 48)
    emulated.set_up(3, 3)

    def mixture(some: slice) -> Tensor:
        taken = ops.route(logits[some], Routing(6, 2))
        return emulated.down(emulated.up(x[some], up, taken, many=False), down, taken, many=False)

    together = mixture(slice(0, 8))
    for some in (slice(0, 1), slice(7, 8), slice(2, 6)):
        assert torch.equal(mixture(some), together[some])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("some", [range(2), range(2, 9)], ids=str)
def test_a_rank_takes_its_own_experts_alone(emulated, way, some):
    many = WAYS[way]
    torch.manual_seed(1)
    taken, x = ops.route(torch.randn(7, 9), Routing(9, 3)), torch.randn(7, 64).bfloat16()
    whole = random_weight(Codes.INT4, 32, 9 * 64, 64), random_weight(Codes.INT4, 32, 9 * 64, 32)
    parts = [lay_out(part_of(weight, some)) for weight in whole]
    listed = assigned_to(some, taken)
    own = listed if many else assigned_to(some, unlisted(taken))
    first, last = listed.starts[0].item(), listed.starts[-1].item()
    emulated.set_up(3, 5)
    inner = emulated.up(x, parts[0], own, many=many)
    exact = [dequantise(weight).bfloat16() if many else dequantise(weight) for weight in whole]
    assert_close(inner[first:last], expected_up(x, exact[0], taken)[first:last], x.dtype)
    got = emulated.down(inner, parts[1], own, many=many, residual=x)
    alone = taken._replace(weights=taken.weights * (listed.places >= 0))
    assert_close(got, expected_down(inner.nan_to_num(), exact[1], alone, residual=x), x.dtype)


def part_of(weight: QuantisedWeight, some: range) -> QuantisedWeight:
    """The matrices of some of nine experts."""
    rows = slice(some.start * weight.columns // 9, some.stop * weight.columns // 9)
    return QuantisedWeight(weight.scheme, weight.codes[rows], weight.scales[:, rows])


def test_what_the_kernels_do_not_take_they_refuse(emulated):
    taken, x = ops.route(torch.randn(9, 4), Routing(4, 2)), torch.randn(9, 64).bfloat16()
    up, _ = matrix((Codes.INT4, 32), 4 * 64, 64)
    emulated.set_up(2, 1)
    with pytest.raises(ValueError, match="up_few"):
        emulated.up(x, up, taken, many=False)  # rows
    with pytest.raises(ValueError, match="up_many"):
        emulated.up(x, up, taken, "relu", many=True)
    narrow, _ = matrix((Codes.INT4, 32), 4 * 48, 64)
    with pytest.raises(ValueError, match="up_many"):
        emulated.up(x, narrow, taken, many=True)  # halves of no whole strips
    odd, _ = matrix((Codes.INT4, 32), 4 * 64, 60)
    with pytest.raises(ValueError, match="down_many"):
        emulated.down(torch.randn(18, 64).bfloat16()[:, :60], odd, taken, many=True)
