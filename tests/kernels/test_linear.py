import pytest
import torch

from octavo_kernels import ops, reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}


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
        assert ((ops.linear(x, weight, b, residual=r).double() - expected).abs() <= bound).all()


def test_result_may_go_into_the_residual(level):
    x, weight, residual = torch.randn(3, 64), torch.randn(40, 64), torch.randn(3, 40)
    expected = ops.linear(x, weight, residual=residual)
    out = ops.linear(x, weight, out=residual, residual=residual)
    assert out is residual
    assert torch.equal(out, expected)


def test_strided_arguments(level):
    x, weight, out = torch.randn(5, 200)[:, 50:130], torch.randn(64, 300)[:, 100:180], torch.empty(5, 100)
    assert torch.equal(ops.linear(x, weight, out=out[:, 20:84]), ops.linear(x.contiguous(), weight.contiguous()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("columns", "depth"), [(100, 96), (33, 250)])
def test_a_row_does_not_feel_the_others(level, dtype, columns, depth, threads):
    """Up to the limit above which the half types go to torch; without limit in float32."""
    rows = int(min(200, ops.linear_limit(dtype)))
    x, weight = torch.randn(rows, depth).to(dtype), torch.randn(columns, depth).to(dtype)
    together = ops.linear(x, weight)
    for n in {1, 2, 3, 5, 16, 31, rows} & set(range(rows + 1)):
        assert torch.equal(ops.linear(x[:n], weight), together[:n])
        assert torch.equal(ops.linear(x[rows - n :], weight), together[rows - n :])
    ops.set_num_threads(1)
    assert torch.equal(ops.linear(x, weight), together)


def test_nan_and_infinity_pass_through(level):
    x = torch.ones(2, 33)
    x[0, 32], x[1, 0] = float("nan"), float("inf")
    out = ops.linear(x, torch.ones(5, 33))
    assert out[0].isnan().all()
    assert (out[1] == float("inf")).all()
