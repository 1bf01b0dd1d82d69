"""Gated products of dozens of rows and more, whose tiles go over several blocks and end in their activation."""

import pytest
import torch

from octavo_kernels import dense_cuda, ops, reference
from octavo_kernels.product import Product

from .conftest import assert_a_graph_computes_the_same

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

HALF = [torch.bfloat16, torch.float16]
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
# (rows, width, depth). On an H200 each has another kind of tile: one or two consumers, 96 to 256 columns, pairs of
# blocks with the same x or the same weights; then several tiles for a block, few stages and a tail of the depth, and
# fewer columns than a tile.
TILES = [
    (33, 3072, 1024), (64, 8192, 512), (64, 8960, 320), (64, 14336, 512), (200, 3072, 1024), (128, 8192, 264),
    (128, 8960, 520), (100, 14336, 512), (300, 3712, 200), (129, 5712, 200), (129, 7424, 200),
    (64, 40000, 136), (512, 14336, 4096), (1000, 3080, 136), (700, 1544, 72), (300, 8, 64), (65, 40, 8),
]  # fmt: skip


def make(rows, width, depth, dtype):
    torch.manual_seed(rows + width + depth)
    x, weight = torch.randn(rows, depth, device="cuda"), torch.randn(2 * width, depth, device="cuda") / depth**0.5
    return x.to(dtype), weight.to(dtype)


def launch(x, weight, kind="silu"):
    out = torch.full((len(x), len(weight) // 2), float("nan"), dtype=x.dtype, device="cuda")
    assert dense_cuda.launch_linear(Product(x, weight), out, ops.ACTIVATIONS[kind])
    return out


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("rows", "width", "depth"), TILES)
def test_products_are_right(dtype, rows, width, depth):
    x, weight = make(rows, width, depth, dtype)
    product = x.double() @ weight.double().T
    for kind in ("silu", "gelu", "gelu_tanh"):
        expected = reference.act_and_mul(product, kind)
        torch.testing.assert_close(launch(x, weight, kind).double(), expected, atol=1e-2, rtol=4 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("rows", "width", "depth"), TILES)
def test_rows_feel_nothing_of_each_other(dtype, rows, width, depth):
    x, weight = make(rows, width, depth, dtype)
    expected, broken = launch(x, weight), torch.arange(rows, device="cuda") % 3 == 1
    x[broken] = float("nan")
    got = launch(x, weight)
    assert torch.equal(got[~broken], expected[~broken])
    assert got[broken].isnan().all()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("rows", "width", "depth"), TILES)
def test_the_same_bits_run_to_run(dtype, rows, width, depth):
    x, weight = make(rows, width, depth, dtype)
    first = launch(x, weight)
    assert all(torch.equal(launch(x, weight), first) for _ in range(20))


@pytest.mark.parametrize("rows", [40, 100, 300])
def test_strided_arguments_and_nothing_beside_the_output(rows):
    wide_x, wide_weight = torch.randn(rows, 600, device="cuda").half(), torch.randn(392, 640, device="cuda").half()
    x, weight = wide_x[:, 40:552], wide_weight[8:, 64:576] / 16
    assert not x.is_contiguous()
    out = torch.full((rows + 1, 320), 7.0, dtype=torch.float16, device="cuda")
    ops.gated_linear(Product(x, weight, out=out[:rows, 64:256]), "silu")
    assert torch.equal(out[:rows, 64:256], ops.gated_linear(Product(x.contiguous(), weight.contiguous()), "silu"))
    assert (out[rows:] == 7).all()
    assert (out[:, :64] == 7).all()
    assert (out[:, 256:] == 7).all()


@pytest.mark.parametrize("rows", [40, 100, 256])
def test_a_chain_of_layers_in_a_graph(rows):
    """Each product begins before the one whose result it reads has ended; the results are those of single calls."""
    up, down = (torch.randn(n, k, device="cuda").bfloat16() / k**0.5 for n, k in ((6144, 1024), (1024, 3072)))
    norm = torch.ones(1024, device="cuda").bfloat16()
    x = torch.empty(rows, 1024, dtype=torch.bfloat16, device="cuda")
    normed, middle = torch.empty_like(x), x.new_empty(rows, 3072)

    def chain(settle):
        for _ in range(12):
            ops.rms_norm(x, norm, 1e-5, out=normed)
            settle()
            assert dense_cuda.launch_linear(Product(normed, up), middle, ops.ACTIVATIONS["silu"])
            settle()
            ops.linear(Product(middle, down, out=x, residual=x))
            settle()

    torch.manual_seed(rows)
    assert_a_graph_computes_the_same(chain, x)


def test_what_tiles_do_not_take_goes_another_way():
    x, weight = make(100, 1024, 512, torch.bfloat16)
    bias = torch.randn(2048, device="cuda").bfloat16()
    assert not dense_cuda.launch_linear(Product(x, weight, bias), x.new_empty(100, 1024), ops.ACTIVATIONS["silu"])
    got = ops.gated_linear(Product(x, weight, bias), "silu")
    expected = reference.act_and_mul(x.double() @ weight.double().T + bias.double(), "silu")
    torch.testing.assert_close(got.double(), expected, atol=1e-2, rtol=4 * ROUNDING[x.dtype])
