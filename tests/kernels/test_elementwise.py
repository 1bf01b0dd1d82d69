import pytest
import torch

from octavo_kernels import ops, reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CLOSE = {
    torch.float32: {"atol": 2e-6, "rtol": 2e-6},
    torch.bfloat16: {"atol": 1e-2, "rtol": 1e-2},
    torch.float16: {"atol": 2e-3, "rtol": 2e-3},
}


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 7, 64, 577])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(level, dtype, width, offset):
    x, weight = (torch.randn(3, width) * 5).to(dtype), torch.randn(width).to(dtype)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-5, offset)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5, offset=offset).double(), expected, **CLOSE[dtype])


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 7, 64, 577])
@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_norm(level, dtype, width, with_bias):
    x, weight = (torch.randn(3, width) * 5 + 3).to(dtype), torch.randn(width).to(dtype)
    bias = torch.randn(width).to(dtype) if with_bias else None
    expected = reference.layer_norm(x.double(), weight.double(), None if bias is None else bias.double(), 1e-5)
    got = ops.layer_norm(x, weight, bias, 1e-5).double()
    atol = 5e-6 if dtype is torch.float32 else CLOSE[dtype]["atol"] * 2
    torch.testing.assert_close(got, expected, atol=atol, rtol=CLOSE[dtype]["rtol"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [ops.rms_norm, ops.layer_norm])
def test_residual_is_updated_in_place_and_its_sum_normalised(level, dtype, norm):
    x, residual, weight = torch.randn(4, 100).to(dtype), torch.randn(4, 100).to(dtype), torch.randn(100).to(dtype)
    total = residual + x
    expected = norm(total, weight)
    out = norm(x, weight, out=x, residual=residual)
    assert out is x
    assert torch.equal(residual, total)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("norm", [ops.rms_norm, ops.layer_norm])
def test_rows_are_independent(level, norm):
    x, weight = torch.randn(500, 96), torch.randn(96)
    assert torch.equal(norm(x, weight)[123:124], norm(x[123:124], weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu"])
def test_activations(level, dtype, kind):
    x = torch.cat((torch.linspace(-12, 12, 999), torch.tensor([0.0, -100.0, 100.0, 1e-6]))).repeat(2, 1).to(dtype)
    torch.testing.assert_close(ops.act(x, kind).double(), reference.act(x.double(), kind), **CLOSE[dtype])
    pair = torch.cat((x, x.flip(1)), dim=1)
    expected = reference.act_and_mul(pair.double(), kind)
    if kind != "relu":
        torch.testing.assert_close(ops.act_and_mul(pair, kind).double(), expected, **CLOSE[dtype])


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu"])
def test_nan_passes_through_activations(level, kind):
    assert ops.act(torch.full((1, 33), float("nan")), kind).isnan().all()
