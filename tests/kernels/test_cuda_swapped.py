"""Products of 65 to 256 rows in tiles that have all of them, on a GPU: against float64, bit for bit among themselves,
and inside a CUDA graph."""

import pytest
import torch

from octavo_kernels import ops, reference
from octavo_kernels.products import dense_cuda
from octavo_kernels.products.choice import Kernel, Launch, Tile, over
from octavo_kernels.products.product import COUNTERS, Product

from .conftest import assert_a_graph_computes_the_same

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
PAIRS = 57  # as many as the smallest Hopper has
TILES = [
    *(Tile(2, tokens) for tokens in (96, 128, 160, 192, 208, 224, 240, 256)),
    *(Tile(3, tokens) for tokens in (96, 128, 160, 192)), Tile(4, 96), Tile(4, 128),
]  # fmt: skip
# (columns, depth): of real layers, and ragged ones.
SIZES = [(4096, 4096), (6144, 1024), (8, 64), (1048, 2056), (4096, 14336), (28672, 512)]


def make(rows, columns, depth, dtype=torch.bfloat16):
    torch.manual_seed(rows + columns + depth)
    x, weight = torch.randn(rows, depth, device="cuda"), torch.randn(columns, depth, device="cuda") / depth**0.5
    bias, residual = torch.randn(columns, device="cuda"), torch.randn(rows, columns, device="cuda")
    return [t.to(dtype) for t in (x, weight, bias, residual)]


def ways(tile, columns, depth):
    """Whole tiles; all pairs evenly; so many for each tile."""
    tiles, stages = over(columns, 128 * tile.consumers), over(depth, 64)
    each = min(PAIRS // tiles, stages)
    return {0, min(PAIRS, tiles * stages), tiles * each} if each else {0, PAIRS}


def launch(p, tile, shares, kind=None):
    columns = len(p.weight) if kind is None else len(p.weight) // 2
    out = torch.full((len(p.x), columns), float("nan"), dtype=p.x.dtype, device="cuda") if p.out is None else p.out
    counter = torch.zeros(COUNTERS, dtype=torch.int32, device="cuda")
    code = None if kind is None else ops.ACTIVATIONS[kind]
    p = p._replace(counter=counter)
    how = Launch(Kernel.SWAPPED, tile, shares=shares)
    assert dense_cuda.launched(p, dense_cuda.operands_of(p, out), how, code)
    assert not counter.any()
    return out


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("columns", "depth"), SIZES)
def test_products_are_right_and_have_the_same_bits_every_time(tile, columns, depth):
    for rows, dtype in ((tile.columns, torch.bfloat16), (tile.columns - 11, torch.float16)):
        x, weight, bias, residual = make(rows, columns, depth, dtype)
        wide = [t.double() for t in (x, weight, bias, residual)]
        expected = reference.linear(*wide)
        bound = 2e-6 * (wide[0].abs() @ wide[1].abs().T + 1) + ROUNDING[dtype] * expected.abs()
        for shares in ways(tile, columns, depth):
            p = Product(x, weight, bias, residual=residual)
            got = launch(p, tile, shares)
            assert ((got.double() - expected).abs() <= bound).all()
            assert torch.equal(launch(p._replace(out=residual.clone()), tile, shares), got)
            assert all(torch.equal(launch(p, tile, shares), got) for _ in range(5))


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("columns", "depth"), [(28672, 512), (784, 2056), (16, 64)])
def test_gates(tile, columns, depth):
    x, weight, bias, _ = make(tile.columns - 5, columns, depth)
    product = reference.linear(x.double(), weight.double(), bias.double())
    for kind in ("silu", "gelu", "gelu_tanh"):
        expected = reference.act_and_mul(product, kind)
        for shares in ways(tile, columns, depth):
            got = launch(Product(x, weight, bias), tile, shares, kind)
            torch.testing.assert_close(got.double(), expected, atol=4e-2, rtol=4 * ROUNDING[x.dtype])


@pytest.mark.parametrize("shares", [0, 48])
def test_rows_feel_nothing_of_each_other(shares):
    x, weight, _, _ = make(200, 4096, 4096)
    expected, broken = launch(Product(x, weight), Tile(2, 208), shares), torch.arange(200, device="cuda") % 3 == 1
    x[broken] = float("nan")
    got = launch(Product(x, weight), Tile(2, 208), shares)
    assert torch.equal(got[~broken], expected[~broken])
    assert got[broken].isnan().all()


@pytest.mark.parametrize("shares", [0, 48])
def test_products_that_follow_each_other_in_a_graph(shares):
    """Each reads what the one before wrote, and all share counters."""
    x, weight, _, residual = make(144, 2048, 2048)
    counter, between = torch.zeros(COUNTERS, dtype=torch.int32, device="cuda"), torch.empty_like(x)
    how = Launch(Kernel.SWAPPED, Tile(2, 160), shares=shares)

    def chain(settle):
        for _ in range(6):
            for rows, out in ((x, between), (between, x)):
                p = Product(rows, weight, residual=residual, counter=counter)
                assert dense_cuda.launched(p, dense_cuda.operands_of(p, out), how)
                settle()

    assert_a_graph_computes_the_same(chain, x)
