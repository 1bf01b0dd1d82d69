"""Products with weights of codes on a GPU: against float64, bit for bit among themselves, and inside a CUDA graph."""

import pytest
import torch

from octavo_kernels import cuda, ops, reference
from octavo_kernels.operands import RmsNorm, norm_at
from octavo_kernels.products import coded_choice, coded_cuda
from octavo_kernels.products.coded import CodedWeight
from octavo_kernels.products.coded_choice import CodedKernel
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import Codes, dequantise

from .coded_weights import FORM_NAMES, FORMS, ROW, random_weight
from .conftest import assert_a_graph_computes_the_same

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

HALF = [torch.bfloat16, torch.float16]
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-23}
INTEGERS = (Codes.INT4, Codes.INT8)
ROWS = [1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 300, 513]
# (columns, depth): layers', then ragged: less than a strip, a tile, a brick; no multiple of eight; more tiles than fit.
SIZES = [(1024, 1024), (16, 128), (8, 64), (40, 136), (264, 1032), (100, 102), (4104, 512), (72, 14336)]


def pack(weight):
    """Packed for the GPU, and float64 for the reference."""
    exact = dequantise(weight).double()
    packed = ops.pack(weight)
    assert isinstance(packed, CodedWeight)
    return packed, exact


def make(kind, group, columns, depth, **options):
    torch.manual_seed(columns + depth)
    return pack(random_weight(kind, group, columns, depth, device="cuda", **options))


def rows_of(rows, columns, depth, dtype):
    x, bias, residual = (torch.randn(*s, device="cuda").to(dtype) for s in ((rows, depth), (columns,), (rows, columns)))
    return x, bias, residual


def assert_product(got, x, exact, bias=None, residual=None, rounded_weight=False):
    """A float32 sum in some order, rounded; libraries may round the product, then with one addend, then the sum, and
    multiply weights that are rounded."""
    wide = [None if t is None else t.double() for t in (x, bias, residual)]
    expected = reference.linear(wide[0], exact, wide[1], wide[2])
    steps = [reference.linear(wide[0], exact, *a) for a in ((), (wide[1],), (None, wide[2]))] + [expected]
    size = wide[0].abs() @ exact.abs().T
    bound = 2e-6 * (size + 1) + ROUNDING[x.dtype] * (sum(s.abs() for s in steps) + rounded_weight * size)
    assert ((got.double() - expected).abs() <= bound).all()


def chosen_for(x, weight):
    return coded_cuda._choose(Product(x, weight), x.new_empty(len(x), weight.columns), False)


def rounds_weights(weight, x):
    launch = chosen_for(x, weight)
    return launch is None or launch.kernel in (CodedKernel.MATRIX, CodedKernel.WIDE)


@pytest.mark.parametrize(("kind", "group"), FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize(("columns", "depth"), SIZES)
@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
def test_dequantise_rounds_once(dtype, columns, depth, kind, group):
    for zeros in {False, kind in INTEGERS}:
        weight = random_weight(kind, group, columns, depth, zeros=zeros, device="cuda")
        expected = dequantise(weight).to(dtype)
        assert torch.equal(coded_cuda.dequantise(ops.pack(weight), dtype), expected)


@pytest.mark.parametrize(("kind", "group"), FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize(("columns", "depth"), SIZES)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_products_of_every_number_of_rows(dtype, columns, depth, kind, group):
    for zeros in {False, kind in INTEGERS}:
        weight, exact = make(kind, group, columns, depth, zeros=zeros)
        for rows in ROWS:
            x, bias, residual = rows_of(rows, columns, depth, dtype)
            for b, r in ((None, None), (bias, None), (None, residual), (bias, residual)):
                out = torch.full_like(residual, float("nan"))
                assert ops.linear(Product(x, weight, b, out=out, residual=r)) is out
                assert_product(out, x, exact, b, r, rounds_weights(weight, x))


def test_rows_in_float32_take_the_matrix():
    weight, exact = make(Codes.INT4, 128, 264, 1032)
    x, bias, residual = rows_of(3, 264, 1032, torch.float32)
    torch.testing.assert_close(
        ops.linear(Product(x, weight, bias, residual=residual)).double(),
        reference.linear(x.double(), exact, bias.double(), residual.double()),
        atol=1e-4, rtol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("kernel", ["few", "tiles", "wide", "matrix"])
@pytest.mark.parametrize(("kind", "group"), FORMS, ids=FORM_NAMES)
def test_every_kernel_is_the_one_that_was_chosen(kind, group, kernel):
    """A product that fell back silently would still be right."""
    weight, exact = make(kind, group, 1024, 1024)
    rows = {"few": 1, "tiles": 20, "wide": 70, "matrix": 4100}[kernel]
    x, _, _ = rows_of(rows, 1024, 1024, torch.bfloat16)
    out = torch.empty(rows, 1024, dtype=x.dtype, device="cuda")
    assert chosen_for(x, weight).kernel is CodedKernel[kernel.upper()]
    assert coded_cuda.launch(Product(x, weight), out) == (kernel != "matrix")
    if kernel != "matrix":
        assert_product(out, x, exact, rounded_weight=kernel == "wide")


@pytest.mark.parametrize("rows", [1, 3, 9, 40, 600])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_codes_in_another_order_meet_their_columns(dtype, rows):
    weight, exact = make(Codes.INT4, 128, 264, 1024, zeros=True, order=True)
    x, bias, residual = rows_of(rows, 264, 1024, dtype)
    norm = RmsNorm(torch.rand(1024, device="cuda").to(dtype), 1e-5)
    got = ops.linear(Product(x, weight, bias, residual=residual))
    assert_product(got, x, exact, bias, residual, rounded_weight=True)
    normed = ops.rms_norm(x, norm.weight, norm.eps)
    assert torch.equal(ops.linear(Product(x, weight, norm=norm)), ops.linear(Product(normed, weight)))


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 17, 33, 65, 300])
@pytest.mark.parametrize("columns", [1024, 6144])
def test_products_of_many_rows_are_those_of_the_copy(columns, rows, order):
    weight, exact = make(Codes.INT4, 128, columns, 1024, zeros=True, order=order)
    x, bias, residual = rows_of(rows, columns, 1024, torch.bfloat16)
    copy = ops.copy_of(weight, x.dtype)
    assert torch.equal(copy, exact.to(x.dtype))
    norm = RmsNorm(torch.rand(1024, device="cuda").to(x.dtype), 1e-5)
    torch.cuda.synchronize()  # kernels read weights from before the previous one has ended
    got = ops.linear(Product(x, weight, bias, residual=residual, norm=norm, copy=copy))
    gate = ops.gated_linear(Product(x, weight, norm=norm, copy=copy), "silu")
    if rows > coded_choice.CODED_NARROW_ROWS:
        assert torch.equal(got, ops.linear(Product(x, copy, bias, residual=residual, norm=norm)))
        assert torch.equal(gate, ops.gated_linear(Product(x, copy, norm=norm), "silu"))
    else:
        assert torch.equal(got, ops.linear(Product(x, weight, bias, residual=residual, norm=norm)))
        assert torch.equal(gate, ops.gated_linear(Product(x, weight, norm=norm), "silu"))
    uniform = ops.linear(Product(x, weight, uniform=True))
    assert torch.equal(ops.linear(Product(x, weight, uniform=True, copy=copy)), uniform)


@pytest.mark.parametrize(("width", "depth"), [(16, 128), (512, 1024), (80, 9216), (24, 256), (14336, 512)])
@pytest.mark.parametrize("kind", list(Codes), ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40, 100, 200, 700])
def test_gates(rows, kind, width, depth):
    weight, exact = make(kind, 32 if kind is Codes.FP4 else 128, 2 * width, depth)
    x, bias, _ = rows_of(rows, 2 * width, depth, torch.bfloat16)
    for b in (None, bias):
        for activation in ("silu", "gelu", "gelu_tanh"):
            out = torch.full((rows, width), float("nan"), dtype=x.dtype, device="cuda")
            assert ops.gated_linear(Product(x, weight, b, out=out), activation) is out
            product = reference.linear(x.double(), exact, None if b is None else b.double())
            expected = reference.act_and_mul(product.bfloat16().double(), activation)
            torch.testing.assert_close(out.double(), expected, atol=4e-2, rtol=4e-2)


@pytest.mark.parametrize("uniform", [False, True])
def test_a_gate_is_the_activation_of_the_product_bit_for_bit(uniform):
    weight, _ = make(Codes.INT4, 128, 1024, 1024)
    for rows in (1, 8, 40, 129):
        x, bias, _ = rows_of(rows, 1024, 1024, torch.bfloat16)
        for b in (None, bias):
            apart = ops.act_and_mul(ops.linear(Product(x, weight, b, uniform=uniform)), "silu")
            assert torch.equal(ops.gated_linear(Product(x, weight, b, uniform=uniform), "silu"), apart)


@pytest.mark.parametrize(("columns", "depth"), [(1024, 1024), (272, 576), (80, 8192), (80, 9216)])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_norms_on_the_way_change_no_bit(columns, depth, rows):
    weight, _ = make(Codes.INT4, 128, columns, depth)
    x, bias, residual = rows_of(rows, columns, depth, torch.bfloat16)
    for offset in (0.0, 1.0):
        norm = RmsNorm(torch.rand(depth, device="cuda").bfloat16(), 1e-5, offset)
        torch.cuda.synchronize()  # kernels read weights from before the previous one has ended
        normed = ops.rms_norm(x, norm.weight, norm.eps, offset=offset)
        got = ops.linear(Product(x, weight, bias, residual=residual, norm=norm))
        assert torch.equal(got, ops.linear(Product(normed, weight, bias, residual=residual)))
        gated = ops.gated_linear(Product(x, weight, norm=norm), "silu")
        assert torch.equal(gated, ops.gated_linear(Product(normed, weight), "silu"))


@pytest.mark.parametrize(("kind", "group"), FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize(("columns", "depth"), [(1024, 1024), (264, 1032), (72, 14336)])
def test_a_uniform_row_feels_neither_the_others_nor_their_number(columns, depth, kind, group):
    weight, exact = make(kind, group, columns, depth)
    x, bias, residual = rows_of(300, columns, depth, torch.bfloat16)
    together = ops.linear(Product(x, weight, bias, residual=residual, uniform=True))
    assert_product(together, x, exact, bias, residual)
    for n in (1, 2, 8, 9, 16, 17, 33, 64, 65, 129, 299):
        first = ops.linear(Product(x[:n], weight, bias, residual=residual[:n], uniform=True))
        last = ops.linear(Product(x[-n:], weight, bias, residual=residual[-n:], uniform=True))
        assert torch.equal(first, together[:n])
        assert torch.equal(last, together[-n:])


@pytest.mark.parametrize(("fewest", "most"), [(1, 8), (9, 32), (33, 64)])
@pytest.mark.parametrize(("columns", "depth"), [(1024, 1024), (72, 3072), (4096, 14336)])
def test_few_rows_feel_neither_the_others_nor_their_number(columns, depth, fewest, most):
    weight, _ = make(Codes.INT4, 128, columns, depth)
    x, _, _ = rows_of(most, columns, depth, torch.bfloat16)
    together = ops.linear(Product(x, weight))
    for n in range(fewest, most):
        assert torch.equal(ops.linear(Product(x[:n], weight)), together[:n])
        assert torch.equal(ops.linear(Product(x[-n:], weight)), together[-n:])


@pytest.mark.parametrize(("columns", "depth"), [(1024, 3072), (28672, 4096), (4096, 14336)])
@pytest.mark.parametrize("rows", [1, 4, 8, 32, 64, 200])
def test_the_same_bits_run_to_run(rows, columns, depth):
    weight, _ = make(Codes.INT4, 128, columns, depth, zeros=True)
    x, bias, residual = rows_of(rows, columns, depth, torch.bfloat16)
    first = ops.linear(Product(x, weight, bias, residual=residual))
    differing = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(200):
        differing |= (ops.linear(Product(x, weight, bias, residual=residual)) != first).any()
    assert not differing


@pytest.mark.parametrize("rows", [1, 5, 40, 140, 600])
@pytest.mark.parametrize("columns", [192, 100, 4104])
def test_strided_arguments_and_nothing_beside_the_output(rows, columns):
    weight, exact = make(Codes.INT4, 128, columns, 512)
    wide_x = torch.randn(rows, 600, device="cuda").half()
    x = wide_x[:, 40:552]
    out = torch.full((rows + 1, columns + 128), 7.0, dtype=torch.float16, device="cuda")
    ops.linear(Product(x, weight, out=out[:rows, 64 : columns + 64]))
    assert_product(out[:rows, 64 : columns + 64], x, exact, rounded_weight=rows > coded_choice.CODED_NARROW_ROWS)
    assert (out[rows:] == 7).all()
    assert (out[:, :64] == 7).all()
    assert (out[:, columns + 64 :] == 7).all()


@pytest.mark.parametrize("rows", [1, 5, 40, 140, 600])
def test_nan_beside_x_and_in_padding_rows_reaches_nothing(rows):
    """A depth that ends inside of a brick: copies go further than x."""
    weight, exact = make(Codes.INT4, 128, 40, 136)
    wide = torch.full((rows + 130, 256), float("nan"), device="cuda", dtype=torch.bfloat16)
    x = wide[:rows, :136]
    x.copy_(torch.randn(rows, 136))
    assert_product(ops.linear(Product(x, weight)), x, exact, rounded_weight=True)


@pytest.mark.parametrize("rows", [1, 5, 40, 140, 600])
def test_result_may_go_into_the_residual(rows):
    weight, _ = make(Codes.INT8, 128, 1024, 1024)
    x, _, residual = rows_of(rows, 1024, 1024, torch.bfloat16)
    expected = ops.linear(Product(x, weight, residual=residual))
    assert ops.linear(Product(x, weight, out=residual, residual=residual)) is residual
    assert torch.equal(residual, expected)


@pytest.mark.parametrize(("rows", "width", "wide"), [(1, 1024, 3072), (4, 1024, 3072), (8, 1024, 3072),
                                                     (50, 4096, 6144), (600, 1024, 3072)])  # fmt: skip
def test_a_chain_of_products_in_a_graph(rows, width, wide):
    """Each product begins before the one whose result it reads has ended; the results are those of single calls."""
    weights = [random_weight(Codes.INT4, 128, n, k, device="cuda") for n, k in ((wide, width), (width, wide))]
    for weight in weights:
        weight.scales.mul_(0.1)  # their codes have a mean, and so many products would leave the range of a number
    weights = [ops.pack(weight) for weight in weights]
    x = torch.empty(rows, width, dtype=torch.bfloat16, device="cuda")
    up = torch.empty(rows, wide, dtype=torch.bfloat16, device="cuda")

    def chain(settle):
        for _ in range(12):
            ops.linear(Product(x, weights[0], out=up))
            settle()
            ops.linear(Product(up, weights[1], out=x, residual=x))
            settle()

    torch.manual_seed(rows)
    assert_a_graph_computes_the_same(chain, x)


def test_no_rows_are_no_launch():
    weight, _ = make(Codes.INT4, 128, 64, 128)
    empty = torch.empty(0, 128, dtype=torch.bfloat16, device="cuda")
    assert ops.linear(Product(empty, weight)).shape == (0, 64)
    assert ops.gated_linear(Product(empty, weight), "silu").shape == (0, 32)


def test_what_the_module_refuses_it_does_not_launch():
    weight, _ = make(Codes.INT4, 128, 64, 128)
    x = torch.randn(17, 128, device="cuda").bfloat16()
    out = torch.full((17, 64), 7.0, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="coded_few"):
        cuda.launched(
            "coded_few", x.device, 1, (x.data_ptr(), 128), coded_cuda.matrix_of(weight), 0, (0, 0),
            (out.data_ptr(), 64), 17, (False, 0), norm_at(None),
        )  # fmt: skip
    with pytest.raises(ValueError, match="uniform"):
        ops.linear(Product(torch.randn(2, 129, device="cuda").bfloat16()[:, 1:], weight, uniform=True))
    assert (out == 7).all()


def test_a_group_of_a_whole_row_and_one_that_is_longer_are_the_same():
    weight = random_weight(Codes.INT8, ROW, 64, 192, device="cuda")
    assert torch.equal(coded_cuda.dequantise(ops.pack(weight), torch.float32), dequantise(weight))
