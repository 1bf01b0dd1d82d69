"""The source of the CUDA kernels for weights of codes, run on the CPU with threads and copies in a random order.

What this shows: which code, scale and row of x meet, that nothing is read before it is there, and that no thread waits
for ever. What it does not: speed, and orders that only memory of a GPU can show. test_cuda_coded.py runs them on one.
"""

from __future__ import annotations

import pytest
import torch

from octavo_kernels import ops, reference
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products.coded import lay_out
from octavo_kernels.products.weights import Codes, dequantise

from .coded_weights import FORM_NAMES, FORMS, random_weight
from .emulated import Emulated

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
HALF = list(ROUNDING)
INTEGERS = (Codes.INT4, Codes.INT8)
GATES = ("silu", "gelu", "gelu_tanh")


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    return Emulated(tmp_path_factory.mktemp("emulated"))


def make(kind, group, columns, depth, zeros=False):
    weight = random_weight(kind, group, columns, depth, zeros=zeros)
    return lay_out(weight), dequantise(weight)


def rows_of(rows, columns, depth, dtype=torch.bfloat16):
    return [torch.randn(*shape).to(dtype) for shape in ((rows, depth), (columns,), (rows, columns))]


def assert_product(got, x, exact, bias=None, residual=None):
    wide = [None if t is None else t.double() for t in (x, bias, residual)]
    expected = reference.linear(wide[0], exact.double(), wide[1], wide[2])
    bound = 2e-6 * (wide[0].abs() @ exact.double().abs().T + 1) + ROUNDING[x.dtype] * expected.abs()
    assert ((got.double() - expected).abs() <= bound).all()


def assert_gate(got, x, exact, gate, bias):
    product = reference.linear(x.double(), exact.double(), None if bias is None else bias.double())
    expected = reference.act_and_mul(product.to(x.dtype).double(), gate)
    torch.testing.assert_close(got.double(), expected, atol=4e-2, rtol=4e-2)


@pytest.mark.parametrize(("kind", "group"), FORMS, ids=FORM_NAMES)
def test_every_form_of_codes(emulated, kind, group):
    for zeros in {False, kind in INTEGERS}:
        weight, exact = make(kind, group, 40, 272, zeros)
        emulated.set_up(2, group % 97)
        for dtype in (*HALF, torch.float32):
            assert torch.equal(emulated.dequantise(weight, dtype), exact.to(dtype))
        for dtype in HALF:
            x, bias, residual = rows_of(3, 40, 272, dtype)
            options = {"bias": bias, "residual": residual}
            assert_product(emulated.few(x, weight, **options), x, exact, bias, residual)
            assert_product(emulated.tiles(x, weight, 8, 2, **options), x, exact, bias, residual)
            many = rows_of(13, 40, 272, dtype)
            got = emulated.tiles(many[0], weight, 16, 3, bias=bias, residual=many[2])
            assert_product(got, many[0], exact, bias, many[2])
            assert_product(emulated.wide(x, weight, 2, 64, 1, **options), x, exact.to(dtype), bias, residual)


@pytest.mark.parametrize(
    ("columns", "depth", "multiprocessors", "rows"),
    [
        (264, 1032, 3, 8), (320, 512, 1, 8), (1040, 256, 1, 1), (32, 2048, 132, 5), (16, 64, 4, 2), (7, 8, 2, 1),
        (320, 1032, 16, 8), (1632, 640, 2, 3), (96, 8192, 16, 8),
    ],
)  # fmt: skip
def test_few_rows(emulated, columns, depth, multiprocessors, rows):
    """Several batches of sums; more warps than parts of the depth, and fewer; clusters; more processors than units."""
    weight, exact = make(Codes.INT4, 128, columns, depth, zeros=True)
    emulated.set_up(multiprocessors, columns)
    x, bias, residual = rows_of(rows, columns, depth)
    got = emulated.few(x, weight, bias=bias, residual=residual)
    assert_product(got, x, exact, bias, residual)
    assert torch.equal(emulated.few(x[-1:], weight, bias=bias, residual=residual[-1:]), got[-1:])
    for gate, b in zip(GATES, (None, bias, bias), strict=True):
        if columns % 32 == 0:
            assert_gate(emulated.few(x, weight, bias=b, gate=gate), x, exact, gate, b)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("depth", [128, 1000, 8192])
def test_a_norm_in_front_of_one_row(emulated, depth, offset):
    weight, exact = make(Codes.INT8, 64, 40, depth)
    emulated.set_up(2, 1)
    x, _, residual = rows_of(1, 40, depth)
    norm = RmsNorm(torch.rand(depth).bfloat16(), 1e-5, offset)
    normed = ops.rms_norm(x, norm.weight, norm.eps, offset=offset)
    got = emulated.few(x * 30, weight, residual=residual, norm=norm).double()
    expected = reference.linear(normed.double(), exact.double(), None, residual.double())
    torch.testing.assert_close(got, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("kind", "group", "columns", "depth", "tokens", "cluster", "rows"),
    [
        (Codes.INT4, 128, 136, 1416, 8, 1, 2),  # the ring goes round
        (Codes.INT4, 128, 100, 1032, 128, 1, 130),  # two tiles of rows, no whole quad of columns
        (Codes.INT4, 64, 24, 520, 64, 8, 66),  # blocks without a brick
        (Codes.INT8, 128, 72, 1032, 32, 2, 33),
        (Codes.INT4, 128, 392, 1160, 32, 3, 20),  # shares that differ; columns in the last tile that there are none of
        (Codes.FP4, 16, 130, 264, 64, 4, 50),
        (Codes.FP8, 128, 7, 72, 16, 1, 17),
    ],
)
def test_tiles_and_that_rows_do_not_feel_their_number(emulated, kind, group, columns, depth, tokens, cluster, rows):
    weight, exact = make(kind, group, columns, depth)
    emulated.set_up(2, tokens)
    x, bias, residual = rows_of(rows, columns, depth)
    whole = emulated.tiles(x, weight, tokens, cluster, bias=bias, residual=residual)
    assert_product(whole, x, exact, bias, residual)
    assert torch.equal(emulated.tiles(x[:2], weight, 8, cluster, bias=bias, residual=residual[:2]), whole[:2])


@pytest.mark.parametrize(
    ("kind", "width", "depth", "tokens", "cluster", "rows"),
    [(Codes.INT4, 80, 264, 8, 2, 5), (Codes.FP8, 16, 200, 32, 1, 40), (Codes.INT8, 64, 520, 8, 8, 8)],
)
def test_tiles_of_gates(emulated, kind, width, depth, tokens, cluster, rows):
    weight, exact = make(kind, 128, 2 * width, depth)
    emulated.set_up(2, 3)
    x, bias, _ = rows_of(rows, 2 * width, depth)
    for gate, b in zip(GATES, (None, bias, bias), strict=True):
        assert_gate(emulated.tiles(x, weight, tokens, cluster, bias=b, gate=gate), x, exact, gate, b)


@pytest.mark.parametrize(
    ("kind", "group", "columns", "depth", "consumers", "tokens", "shares", "rows"),
    [
        (Codes.INT4, 128, 136, 1032, 2, 256, 0, 40),  # the ring goes round
        (Codes.INT4, 128, 392, 200, 2, 64, 0, 150),  # several tiles for a pair, whose last one has none of the columns
        (Codes.INT4, 256, 200, 456, 2, 128, 0, 130),  # two tiles of rows, less than an instruction has
        (Codes.INT4, 32, 40, 520, 2, 208, 4, 201),  # parts of the depth that differ
        (Codes.INT8, 64, 8, 128, 2, 128, 2, 3),  # a stage for each part
        (Codes.FP4, 16, 264, 328, 2, 128, 4, 60),
        (Codes.INT4, 128, 392, 264, 2, 64, 3, 130),  # six tiles of which three pairs have two each
        (Codes.FP8, 128, 520, 200, 2, 64, 4, 70),  # the end of one tile and the beginning of the next
    ],
)
def test_wide_tiles(emulated, kind, group, columns, depth, consumers, tokens, shares, rows):
    """The products of the matrix that is rounded once; into the residual; with what is not a number beside x."""
    weight, exact = make(kind, group, columns, depth, kind in INTEGERS)
    emulated.set_up(8, tokens + rows)
    _, bias, residual = rows_of(rows, columns, depth)
    x = torch.full((rows + 3, depth + 64), float("nan"), dtype=torch.bfloat16)[:rows, :depth]
    x.copy_(torch.randn(rows, depth))
    got = emulated.wide(x, weight, consumers, tokens, shares, bias=bias, residual=residual, in_place=True)
    assert_product(got, x, exact.bfloat16(), bias, residual)


@pytest.mark.parametrize(
    ("kind", "width", "depth", "consumers", "tokens", "shares", "rows"),
    [
        (Codes.INT4, 208, 264, 2, 64, 0, 70),
        (Codes.INT4, 16, 328, 2, 64, 4, 64),  # fewer parts of the results than of the depth
        (Codes.INT8, 112, 200, 2, 128, 2, 100),
        (Codes.FP8, 80, 136, 2, 192, 0, 192),
    ],
)
def test_wide_tiles_of_gates(emulated, kind, width, depth, consumers, tokens, shares, rows):
    weight, exact = make(kind, 128, 2 * width, depth, kind in INTEGERS)
    emulated.set_up(8, rows)
    x, bias, _ = rows_of(rows, 2 * width, depth)
    for gate, b in zip(GATES, (None, bias, bias), strict=True):
        got = emulated.wide(x, weight, consumers, tokens, shares, bias=b, gate=gate)
        assert_gate(got, x, exact.bfloat16(), gate, b)
        product = emulated.wide(x, weight, consumers, tokens, shares, bias=b).double()
        torch.testing.assert_close(got.double(), reference.act_and_mul(product, gate), atol=1e-6, rtol=2**-7)


def test_what_a_kernel_cannot_compute_it_refuses(emulated):
    weight, _ = make(Codes.INT4, 128, 48, 128)
    x, _, _ = rows_of(9, 48, 128)
    with pytest.raises(ValueError, match="few"):
        emulated.few(x, weight)  # too many rows
    with pytest.raises(ValueError, match="few"):
        emulated.few(x[:1], weight, gate="silu")  # half a strip on each side
    with pytest.raises(ValueError, match="tiles"):
        emulated.tiles(x, weight, 8, 9)
    with pytest.raises(ValueError, match="tiles"):
        emulated.tiles(x, weight, 24, 1)
    for consumers, tokens, shares in ((1, 64, 0), (2, 48, 0), (2, 64, 9), (2, 64, 3)):  # the last one: too short
        with pytest.raises(ValueError, match="wide"):
            emulated.wide(x, weight, consumers, tokens, shares)
    with pytest.raises(ValueError, match="wide"):
        emulated.wide(x, make(Codes.INT4, 128, 44, 128)[0], 2, 64, 0)  # no whole eights
