"""The source of products of 65 to 256 rows, run on the CPU with threads and copies in a random order.

What this shows: which weights and rows of x meet, that nothing is read before it is there, that sums of shared tiles
are complete and in order, and that no thread waits for ever. What it does not: speed, registers, and orders that only
memory of a GPU can show. test_cuda_swapped.py runs it on one.
"""

from __future__ import annotations

import pytest
import torch

from octavo_kernels import reference
from octavo_kernels.products.choice import Tile

from .emulated_linear import EmulatedLinear

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    return EmulatedLinear(tmp_path_factory.mktemp("linear"))


def make(rows, columns, depth, dtype=torch.bfloat16):
    torch.manual_seed(rows + columns + depth)
    x, weight = torch.randn(rows, depth).to(dtype), (torch.randn(columns, depth) / depth**0.5).to(dtype)
    return x, weight, torch.randn(columns).to(dtype), torch.randn(rows, columns).to(dtype)


def assert_product(got, x, weight, bias=None, residual=None):
    wide = [None if t is None else t.double() for t in (x, weight, bias, residual)]
    expected = reference.linear(*wide)
    bound = 2e-6 * (wide[0].abs() @ wide[1].abs().T + 1) + ROUNDING[x.dtype] * expected.abs()
    assert ((got.double() - expected).abs() <= bound).all()


# (consumers, rows of x of a tile, rows, columns, depth, shares): rings that go round; a pair that goes on to its next
# tile; tiles shared by two, by three and by all pairs; pairs with the end of one tile, a whole one and the beginning of
# another; no whole tile of columns, no whole stage of the depth.
CASES = [
    (2, 96, 65, 264, 72, 0), (2, 96, 96, 776, 520, 0), (2, 128, 128, 512, 456, 2), (2, 208, 200, 264, 264, 3),
    (3, 96, 66, 392, 200, 2), (3, 192, 177, 776, 128, 3), (2, 256, 256, 1032, 136, 3), (2, 160, 129, 768, 192, 2),
    (2, 240, 226, 24, 840, 3), (3, 160, 150, 8, 64, 1), (4, 128, 97, 1304, 264, 3), (4, 96, 80, 528, 136, 0),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_are_right(emulated, case):
    consumers, tokens, rows, columns, depth, shares = case
    dtype = torch.float16 if rows == 129 else torch.bfloat16
    x, weight, bias, residual = make(rows, columns, depth, dtype)
    for seed in (1, 2):
        emulated.set_up(6, seed)
        got = emulated.swapped(x, weight, Tile(consumers, tokens), shares, bias=bias, residual=residual)
        assert_product(got, x, weight, bias, residual)


@pytest.mark.parametrize("gate", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("shares", [0, 3])
def test_gates(emulated, gate, shares):
    x, weight, bias, _ = make(100, 784, 264)
    emulated.set_up(6, 5)
    for tile, own in ((Tile(2, 128), None), (Tile(3, 128), bias)):
        got = emulated.swapped(x, weight, tile, shares, bias=own, gate=gate)
        product = reference.linear(x.double(), weight.double(), None if own is None else own.double())
        expected = reference.act_and_mul(product.to(x.dtype).double(), gate)
        torch.testing.assert_close(got.double(), expected, atol=2e-2, rtol=4 * ROUNDING[x.dtype])


@pytest.mark.parametrize("shares", [0, 2, 3])
def test_the_same_bits_in_whatever_order_blocks_run_and_in_the_residuals_place(emulated, shares):
    x, weight, _, residual = make(200, 520, 392)
    results = []
    for seed in (1, 2, 3):
        emulated.set_up(6, seed)
        got = emulated.swapped(x, weight, Tile(2, 208), shares, residual=residual, in_place=seed == 3)
        results.append(got.clone())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_rows_feel_nothing_of_each_other(emulated):
    x, weight, _, _ = make(130, 264, 200)
    emulated.set_up(6, 1)
    whole, broken = emulated.swapped(x, weight, Tile(2, 160), 3), torch.arange(130) % 3 == 1
    x[broken] = float("nan")
    got = emulated.swapped(x, weight, Tile(2, 160), 3)
    assert torch.equal(got[~broken], whole[~broken])
    assert got[broken].isnan().all()


def test_what_the_kernel_does_not_take_it_refuses(emulated):
    x, weight, _, _ = make(130, 264, 200)
    emulated.set_up(6, 1)
    for tile, shares in ((Tile(2, 128), 0), (Tile(4, 160), 0), (Tile(2, 160), 4)):
        with pytest.raises(ValueError, match="swapped"):
            emulated.swapped(x, weight, tile, shares)
    with pytest.raises(ValueError, match="swapped"):
        emulated.swapped(x, weight[:260], Tile(2, 160))
