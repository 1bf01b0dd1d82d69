import pytest
import torch

from octavo_kernels import ops, reference
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products.product import Product

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("columns", "depth"), [(1, 8), (7, 100), (48, 64), (129, 577), (300, 1024)])
@pytest.mark.parametrize("rows", [0, 1, 7, 16, 17, 65])
def test_linear(level, dtype, rows, columns, depth):
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, depth).to(dtype), (torch.randn(columns, depth) / depth**0.5).to(dtype)
    bias, residual = torch.randn(columns).to(dtype), torch.randn(rows, columns).to(dtype)
    for b, r in ((None, None), (bias, None), (bias, residual)):
        wide = [None if t is None else t.double() for t in (x, weight, b, r)]
        expected = reference.linear(*wide)
        product = reference.linear(*wide[:3])
        # A float32 sum in some order, then rounded; torch rounds the product and the sum.
        bound = 2e-6 * (wide[0].abs() @ wide[1].abs().T + 1) + ROUNDING[dtype] * (product.abs() + expected.abs())
        assert ((ops.linear(Product(x, weight, b, residual=r)).double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "depth"), [(3, 64), (70, 64), (70, 1100)])
def test_result_may_go_into_the_residual(level, dtype, rows, depth):
    x, weight = torch.randn(rows, depth).to(dtype), torch.randn(40, depth).to(dtype)
    residual = torch.randn(rows, 40).to(dtype)
    expected = ops.linear(Product(x, weight, residual=residual))
    out = ops.linear(Product(x, weight, out=residual, residual=residual))
    assert out is residual
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 33, 250), (3, 64, 64), (20, 300, 330), (130, 97, 1100)])
def test_a_factor_is_of_the_product_and_its_bias(level, dtype, rows, columns, depth):
    """Rounded once, behind the sum: of the depth in one and two parts, few rows and many."""
    x, weight = torch.randn(rows, depth).to(dtype), (torch.randn(columns, depth) / depth**0.5).to(dtype)
    bias, residual = torch.randn(columns).to(dtype), torch.randn(rows, columns).to(dtype)
    for b in (None, bias):
        wide = [None if t is None else t.double() for t in (x, weight, b, residual)]
        expected = reference.linear(*wide, 0.22)
        bound = 2e-6 * (wide[0].abs() @ wide[1].abs().T + 1) + ROUNDING[dtype] * expected.abs()
        product = Product(x, weight, b, residual=residual, factor=0.22)
        together = ops.linear(product)
        assert ((together.double() - expected).abs() <= bound).all()
        assert torch.equal(ops.linear(product._replace(x=x[-1:], residual=residual[-1:])), together[-1:])
        in_place = residual.clone()
        ops.linear(product._replace(residual=in_place, out=in_place))
        assert torch.equal(in_place, together)


def test_a_factor_of_nothing_that_is_added_to_is_refused():
    x, weight = torch.ones(2, 8), torch.ones(3, 8)
    with pytest.raises(ValueError, match="factor is for a product with a residual"):
        ops.linear(Product(x, weight, factor=0.5))
    with pytest.raises(ValueError, match="factor is for a product with a residual"):
        ops.gated_linear(Product(x, torch.ones(4, 8), factor=0.5), "silu")


def test_strided_arguments(level):
    x, weight, out = torch.randn(5, 200)[:, 50:130], torch.randn(64, 300)[:, 100:180], torch.empty(5, 100)
    expected = ops.linear(Product(x.contiguous(), weight.contiguous()))
    assert torch.equal(ops.linear(Product(x, weight, out=out[:, 20:84])), expected)


# Small products, and one on each side of every size at which blocking changes.
ROW_COUNTS = [*range(1, 600, 37), 2, 3, 5, 16, 17, 31, 33, 63, 64, 65, 80, 81, 96, 97, 128, 129, 511, 512, 513, 600]


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("columns", "depth"), [(100, 96), (33, 250), (300, 330), (40, 1100)])
def test_a_row_feels_neither_the_others_nor_their_number(level, dtype, columns, depth, threads):
    """A decode step and a prefill of any length give the same bits: a takeover continues where the other stopped."""
    rows = max(ROW_COUNTS)
    x, weight = torch.randn(rows, depth).to(dtype), torch.randn(columns, depth).to(dtype)
    bias, residual = torch.randn(columns).to(dtype), torch.randn(rows, columns).to(dtype)
    together = ops.linear(Product(x, weight, bias, residual=residual))
    for n in ROW_COUNTS:
        assert torch.equal(ops.linear(Product(x[:n], weight, bias, residual=residual[:n])), together[:n])
        assert torch.equal(ops.linear(Product(x[-n:], weight, bias, residual=residual[-n:])), together[-n:])
    plain = ops.linear(Product(x, weight))
    for n in (1, 64, 65):
        assert torch.equal(ops.linear(Product(x[:n], weight)), plain[:n])
    for n in (1, 5):
        ops.set_num_threads(n)
        assert torch.equal(ops.linear(Product(x, weight)), plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_gated_linear_is_the_product_and_then_the_gate(level, dtype, kind):
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((5, 48), (64, 48), (64,)))
    for b in (None, bias):
        expected = ops.act_and_mul(ops.linear(Product(x, weight, b)), kind)
        assert torch.equal(ops.gated_linear(Product(x, weight, b), kind), expected)
        out, scratch = torch.empty(5, 32, dtype=dtype), torch.empty(5, 64, dtype=dtype)
        assert ops.gated_linear(Product(x, weight, b, out=out), kind, scratch) is out
        assert torch.equal(out, expected)


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns", "depth"), [(130, 97, 1100), (600, 290, 70), (66, 600, 2100)])
def test_many_rows(level, dtype, rows, columns, depth):
    x, weight = torch.randn(rows, depth).to(dtype), (torch.randn(columns, depth) / depth**0.5).to(dtype)
    expected = x.double() @ weight.double().T
    bound = 4e-6 * (x.double().abs() @ weight.double().abs().T) + ROUNDING[dtype] * expected.abs() + 1e-6
    assert ((ops.linear(Product(x, weight)).double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("rows", [3, 70])
def test_nothing_is_written_beside_the_output(level, rows):
    x, weight = torch.randn(rows, 40).bfloat16(), torch.randn(45, 40).bfloat16()
    out = torch.full((rows + 1, 60), 7.0, dtype=torch.bfloat16)
    ops.linear(Product(x, weight, out=out[:rows, 5:50]))
    assert torch.equal(out[:rows, 5:50], ops.linear(Product(x, weight)))
    assert (out[rows:] == 7).all()
    assert (out[:, :5] == 7).all()
    assert (out[:, 50:] == 7).all()


def test_nan_and_infinity_pass_through(level):
    x = torch.ones(2, 33)
    x[0, 32], x[1, 0] = float("nan"), float("inf")
    out = ops.linear(Product(x, torch.ones(5, 33)))
    assert out[0].isnan().all()
    assert (out[1] == float("inf")).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stored", [False, True])
def test_norm_on_the_way(level, dtype, stored):
    x, weight, residual = torch.randn(5, 96).to(dtype), torch.randn(64, 96).to(dtype), torch.randn(5, 64).to(dtype)
    norm = RmsNorm(torch.rand(96).to(dtype), 1e-5, 1.0)
    before, normed = x.clone(), torch.empty_like(x) if stored else None
    expected = ops.rms_norm(x, norm.weight, 1e-5, offset=1.0)
    product = ops.linear(Product(x, weight, residual=residual, norm=norm, normed=normed))
    assert torch.equal(product, ops.linear(Product(expected, weight, residual=residual)))
    gated = ops.gated_linear(Product(x, weight, norm=norm, normed=normed), "silu")
    assert torch.equal(gated, ops.gated_linear(Product(expected, weight), "silu"))
    assert torch.equal(x, before)


def test_a_norm_of_another_width_is_named(level):
    with pytest.raises(ValueError, match=r"^norm.weight must have shape \[96\]"):
        ops.linear(Product(torch.zeros(5, 96), torch.zeros(64, 96), norm=RmsNorm(torch.ones(64))))
