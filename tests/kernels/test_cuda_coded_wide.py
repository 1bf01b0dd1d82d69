"""Products of codes in wide tiles on a GPU: every tile, and every way to share the depth."""

import pytest
import torch

from octavo_kernels import cuda, ops, reference
from octavo_kernels.operands import norm_at
from octavo_kernels.products import coded_choice, coded_cuda
from octavo_kernels.products.coded_choice import WIDE_CLUSTERS, WIDE_TILES, CodedKernel, CodedLaunch
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import Codes, dequantise

from .coded_weights import FORM_NAMES, FORMS, random_weight
from .test_cuda_coded import ROUNDING, pack, rows_of

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

HALF = [torch.bfloat16, torch.float16]
LAUNCHES = [
    CodedLaunch(CodedKernel.WIDE, tokens, cluster, consumers)
    for consumers, tokens in WIDE_TILES
    for cluster in WIDE_CLUSTERS
]
NAMES = [f"{a.consumers}x{a.tokens}x{a.cluster}" for a in LAUNCHES]


@pytest.fixture
def launch(request, monkeypatch):
    """The launch that is chosen for any product."""
    if not cuda.chip(torch.device("cuda", 0)).hopper:
        pytest.skip("a kernel for Hopper")
    monkeypatch.setattr(coded_choice, "choose_coded", lambda *_: request.param)
    return request.param


every_launch = pytest.mark.parametrize("launch", LAUNCHES, ids=NAMES, indirect=True)
some_launches = pytest.mark.parametrize("launch", LAUNCHES[::4], ids=NAMES[::4], indirect=True)


def make(kind, group, columns, depth, **options):
    """Packed, and as the matrix that it stands for."""
    torch.manual_seed(columns + depth)
    weight = random_weight(kind, group, columns, depth, device="cuda", **options)
    return pack(weight)[0], dequantise(weight)


def assert_product(got, x, matrix, bias=None, residual=None):
    """Compares with the product of the matrix, rounded once to the type of x: a float32 sum in some order, rounded."""
    wide = [None if t is None else t.double() for t in (x, bias, residual)]
    rounded = matrix.to(x.dtype).double()
    expected = reference.linear(wide[0], rounded, wide[1], wide[2])
    bound = 2e-6 * (wide[0].abs() @ rounded.abs().T + 1) + ROUNDING[x.dtype] * expected.abs()
    assert ((got.double() - expected).abs() <= bound).all()


@every_launch
@pytest.mark.parametrize(("kind", "group"), FORMS, ids=FORM_NAMES)
def test_products(launch, kind, group):
    """Many tiles for a block; less than a tile, a strip, a brick; stages that the blocks cannot share evenly."""
    for columns, depth in ((4104, 456), (8, 264), (264, 1032), (1024, 1024)):
        for zeros in {False, kind in (Codes.INT4, Codes.INT8)}:
            weight, matrix = make(kind, group, columns, depth, zeros=zeros)
            for rows in (1, 33, launch.tokens, launch.tokens + 1, 2 * launch.tokens + 40):
                for dtype in HALF:
                    x, bias, residual = rows_of(rows, columns, depth, dtype)
                    for b, r in ((None, None), (bias, residual)):
                        out = torch.full_like(residual, float("nan"))
                        assert coded_cuda.launch(Product(x, weight, b, residual=r), out)
                        assert_product(out, x, matrix, b, r)


@every_launch
@pytest.mark.parametrize("kind", list(Codes), ids=lambda kind: kind.name)
def test_a_gate_is_the_activation_of_the_product_bit_for_bit(launch, kind):
    for columns, depth in ((1024, 1024), (32, 264), (11 * 32, 456)):
        weight, _ = make(kind, 32 if kind is Codes.FP4 else 128, columns, depth, zeros=kind is Codes.INT8)
        for rows in (2, launch.tokens, launch.tokens + 33):
            x, bias, _ = rows_of(rows, columns, depth, torch.bfloat16)
            for b in (None, bias):
                for activation in ("silu", "gelu", "gelu_tanh"):
                    apart = ops.act_and_mul(ops.linear(Product(x, weight, b)), activation)
                    assert torch.equal(ops.gated_linear(Product(x, weight, b), activation), apart)


@every_launch
@pytest.mark.parametrize("rows", [40, 300])
def test_result_may_go_into_the_residual_and_nowhere_beside_it(launch, rows):
    weight, matrix = make(Codes.INT4, 128, 1000, 1032, zeros=True)
    x, bias, residual = rows_of(rows, 1000, 1032, torch.bfloat16)
    beside = torch.full((rows + 1, 1128), 7.0, dtype=torch.bfloat16, device="cuda")
    out = beside[:rows, 64:1064]
    out.copy_(residual)
    ops.linear(Product(x, weight, bias, out=out, residual=out))
    assert_product(out, x, matrix, bias, residual)
    assert (beside[rows:] == 7).all()
    assert (beside[:, :64] == 7).all()
    assert (beside[:, 1064:] == 7).all()


@every_launch
def test_nan_beside_x_and_in_rows_behind_it_reaches_nothing(launch):
    weight, matrix = make(Codes.INT4, 128, 40, 264)
    wide = torch.full((300, 512), float("nan"), device="cuda", dtype=torch.bfloat16)
    x = wide[:70, :264]
    x.copy_(torch.randn(70, 264))
    assert_product(ops.linear(Product(x, weight)), x, matrix)


@every_launch
def test_a_row_that_is_not_finite_reaches_no_other(launch):
    weight, matrix = make(Codes.INT4, 128, 264, 1032)
    x, _, _ = rows_of(launch.tokens + 20, 264, 1032, torch.bfloat16)
    x[3, 500], x[-1, 7] = float("nan"), float("inf")
    got = ops.linear(Product(x, weight))
    assert not got[3].isfinite().any()
    assert not got[-1].isfinite().any()
    fine = torch.ones(len(x), dtype=torch.bool, device="cuda")
    fine[3] = fine[-1] = False
    assert_product(got[fine], x[fine], matrix)


@some_launches
@pytest.mark.parametrize(("columns", "depth"), [(1024, 3072), (28672, 4096), (4096, 14336)])
def test_the_same_bits_run_to_run(launch, columns, depth):
    weight, _ = make(Codes.INT4, 128, columns, depth, zeros=True)
    x, bias, residual = rows_of(2 * launch.tokens - 10, columns, depth, torch.bfloat16)
    first = ops.linear(Product(x, weight, bias, residual=residual))
    differing = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(200):
        differing |= (ops.linear(Product(x, weight, bias, residual=residual)) != first).any()
    assert not differing


def test_what_the_module_refuses_it_does_not_launch():
    weight, _ = make(Codes.INT4, 128, 64, 128)
    x = torch.randn(40, 128, device="cuda").bfloat16()
    out = torch.full((40, 72), 7.0, device="cuda", dtype=torch.bfloat16)
    for tile, at in (((2, 48, 1), 0), ((2, 64, 3), 0), ((2, 64, 4), 0), ((1, 64, 1), 0), ((2, 64, 1), 2)):
        with pytest.raises(ValueError, match="coded_wide"):
            cuda.launched(
                "coded_wide", x.device, 1, (x.data_ptr(), 128), coded_cuda.matrix_of(weight), 0, (0, 0),
                (out.data_ptr() + at, 72), 40, (False, 0), norm_at(None), tile,
            )  # fmt: skip
    assert (out == 7).all()
