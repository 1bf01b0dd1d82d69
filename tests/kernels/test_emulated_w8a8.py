"""The source of the products of one row with codes of eight bits, run on the CPU with threads and copies in a random
order.

What this shows: which code, scale and column meet, that nothing is read before it is there, and that no thread waits
for ever. What it does not: speed, and orders that only memory of a GPU can show. test_cuda_w8a8.py runs them on one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo_kernels import reference
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products.choice import Form
from octavo_kernels.products.w8a8 import BLOCK, DTYPE_OF
from octavo_kernels.products.weights import Activations, Codes, PackedWeight, Scheme

from .emulated_w8a8 import EmulatedRow

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

FORMS = [Form.INT8, Form.FP8, Form.FP8_BLOCKS]
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    return EmulatedRow(tmp_path_factory.mktemp("w8a8"))


def pack(form, codes, scales) -> PackedWeight:
    group = BLOCK if form is Form.FP8_BLOCKS else 0
    kinds = (Codes.INT8, Activations.INT8) if form is Form.INT8 else (Codes.FP8, Activations.FP8)
    columns, depth = codes.shape
    return PackedWeight(Scheme(kinds[0], group or depth, kinds[1], group), columns, depth, codes, scales)


def make(form, columns, depth) -> PackedWeight:
    """Scales that differ by group and row, so that another one's is seen."""
    torch.manual_seed(columns + depth)
    kind = torch.int8 if form is Form.INT8 else torch.float8_e4m3fn
    codes, _ = reference.quantise(torch.randn(columns, depth), kind)
    groups = -(-depth // BLOCK) if form is Form.FP8_BLOCKS else 1
    return pack(form, codes, (torch.rand(groups, columns) + 0.1) / 64)


def rows_of(columns, depth, dtype=torch.bfloat16):
    """x, whose blocks differ in size, a bias, a residual."""
    size = torch.rand(-(-depth // BLOCK)).repeat_interleave(BLOCK)[:depth] * 10 + 0.01
    return ((torch.randn(1, depth) * size).to(dtype), torch.randn(columns).to(dtype), torch.randn(1, columns).to(dtype))


def expected(emulated, x, weight, norm=None):
    """The product of the codes that w8a8_rows.cu makes, in float64, and the sum of magnitudes."""
    scheme = weight.scheme
    group = scheme.activation_group if scheme.activation_group == BLOCK else 0
    codes, scales = emulated.quantise(x, scheme.activations, group, norm)
    place = torch.arange(weight.depth)
    wide_x = codes.double() * scales.T.double()[:, place // (group or weight.depth)]
    wide = weight.codes.double() * weight.scales.T.double()[:, place // scheme.group]
    return wide_x @ wide.T, wide_x.abs() @ wide.abs().T


def assert_product(emulated, got, x, weight, bias=None, residual=None, norm=None, rounded=True):
    """`rounded`: sums of four products of FP8 are, to eleven bits."""
    product, magnitude = expected(emulated, x, weight, norm)
    for addend in (bias, residual):
        if addend is not None:
            product = product + addend.double()
    kept = 3 * 2**-12 if rounded and weight.scheme.codes is Codes.FP8 else 2e-6
    bound = kept * magnitude + 2e-6 + ROUNDING[x.dtype] * product.abs()
    assert ((got.double() - product).abs() <= bound).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("group", [0, BLOCK])
@pytest.mark.parametrize("depth", [16, 144, 1040, 4096])
def test_rows_become_the_references_codes(emulated, form, group, depth):
    kind = Activations.INT8 if form is Form.INT8 else Activations.FP8
    emulated.set_up(2, depth)
    x = rows_of(8, depth)[0]
    x[0, : depth // 2] = 0.0
    codes, scales = emulated.quantise(x, kind, group)
    parts = [reference.quantise(part.float(), DTYPE_OF[kind]) for part in x.split(group or depth, dim=1)]
    assert torch.equal(codes.view(torch.uint8), torch.cat([c.view(torch.uint8) for c, _ in parts], 1))
    assert torch.equal(scales.T, torch.cat([s for _, s in parts], 1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("columns", "depth", "multiprocessors"),
    [
        (8, 16, 4), (40, 144, 2), (72, 2048, 1), (300, 656, 1), (24, 4112, 2), (40, 6160, 1), (33, 4096, 1),
        (520, 2192, 2), (16, 16384, 1), (1, 8192, 132),
    ],
)  # fmt: skip
def test_products(emulated, form, columns, depth, multiprocessors):
    """Less than a group, a piece and a ring, and more; warps without a row, and of several batches of rows."""
    weight = make(form, columns, depth)
    for dtype in ROUNDING:
        emulated.set_up(multiprocessors, columns)
        x, bias, residual = rows_of(columns, depth, dtype)
        assert_product(emulated, emulated.product(x, weight), x, weight)
        got = emulated.product(x, weight, bias, residual)
        assert_product(emulated, got, x, weight, bias, residual)
        emulated.set_up(max(1, multiprocessors // 2), depth)
        assert torch.equal(emulated.product(x, weight, bias, residual), got)  # whichever warp computes a column
        alone = x * (torch.arange(depth) % 16 == torch.randint(16, (depth // 16,)).repeat_interleave(16))
        assert_product(emulated, emulated.product(alone, weight), alone, weight, rounded=False)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("depth", [16, 272, 2176, 8192])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_norm_in_front(emulated, form, depth, offset):
    weight = make(form, 24, depth)
    emulated.set_up(1, depth)
    x, bias, residual = rows_of(24, depth)
    norm = RmsNorm((torch.rand(depth) + 0.5).bfloat16(), 1e-5, offset)
    got = emulated.product(x, weight, bias, residual, norm=norm)
    assert_product(emulated, got, x, weight, bias, residual, norm)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("columns", "depth"), [(16, 16), (304, 656), (80, 4240), (32, 14336)])
def test_gates_are_rounded_as_if_stored(emulated, form, columns, depth):
    weight = make(form, columns, depth)
    emulated.set_up(2, columns)
    x, bias, _ = rows_of(columns, depth)
    for gate, b in zip(("silu", "gelu", "gelu_tanh"), (None, bias, bias), strict=True):
        stored = emulated.product(x, weight, b)
        got = emulated.product(x, weight, b, gate=gate)
        torch.testing.assert_close(
            got.double(), reference.act_and_mul(stored.double(), gate), atol=1e-5, rtol=2 * ROUNDING[x.dtype]
        )


@pytest.mark.parametrize("form", [Form.FP8, Form.FP8_BLOCKS])
@pytest.mark.parametrize("depth", [272, 2064])
def test_codes_and_scales_of_a_row_are_those_that_are_made_apart(emulated, form, depth):
    """By a weight that gives back each code times its scale."""
    groups = -(-depth // BLOCK) if form is Form.FP8_BLOCKS else 1
    weight = pack(form, torch.eye(depth).to(torch.float8_e4m3fn), torch.ones(groups, depth))
    emulated.set_up(2, depth)
    x, _, _ = rows_of(depth, depth)
    norm = RmsNorm((torch.rand(depth) + 0.5).bfloat16(), 1e-5)
    group = BLOCK if form is Form.FP8_BLOCKS else 0
    for factors in (None, norm):
        codes, scales = emulated.quantise(x, Activations.FP8, group, factors)
        wide = codes.float() * scales.T[:, torch.arange(depth) // (group or depth)]
        assert torch.equal(emulated.product(x, weight, norm=factors), wide.bfloat16())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_lost(emulated, form, wrong):
    weight = make(form, 24, 656)
    emulated.set_up(2, 1)
    x, _, _ = rows_of(24, 656)
    x[0, 650] = wrong
    assert emulated.product(x, weight).isnan().all()


def test_what_the_kernel_cannot_compute_it_refuses(emulated):
    for columns, depth in ((8, 24), (8, 16400)):
        x, _, _ = rows_of(columns, depth)
        with pytest.raises(ValueError, match="row"):
            emulated.product(x, make(Form.FP8_BLOCKS, columns, depth))
    weight = pack(Form.INT8, torch.zeros(8, 256, dtype=torch.int8), torch.ones(1, 8))
    blocks = Scheme(Codes.INT8, BLOCK, Activations.INT8, BLOCK)
    with pytest.raises(ValueError, match="row"):
        emulated.product(rows_of(8, 256)[0], replace(weight, scheme=blocks))
