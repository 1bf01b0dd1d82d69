"""The source of the CUDA kernels for weights of 16 bits, run on the CPU as in test_emulated.py; test_cuda_linear.py and
test_cuda_uniform.py run them on a GPU."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels import ops, reference
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products.choice import Kernel, Launch, Tile
from octavo_kernels.products.product import Product

from .emulated_linear import EmulatedLinear

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
ROW, HELD = Launch(Kernel.ROW), Launch(Kernel.HELD)
# (launch, rows, columns, depth, multiprocessors): whole tiles and ragged ones, depths of one block and of two.
PLAIN = [
    (ROW, 1, 40, 272, 2), (ROW, 1, 7, 2120, 1), (HELD, 5, 264, 544, 3), (HELD, 16, 40, 128, 2), (HELD, 12, 200, 64, 1),
    (HELD, 32, 72, 96, 1), (HELD, 3, 48, 2112, 4), (Launch(Kernel.RING), 8, 264, 576, 3),
    (Launch(Kernel.RING), 13, 40, 128, 2), (Launch(Kernel.RING), 29, 72, 640, 2),
    (Launch(Kernel.RING, cluster=2), 20, 48, 1088, 4), (Launch(Kernel.WIDE, Tile(1, 48)), 33, 200, 136, 2),
    (Launch(Kernel.WIDE, Tile(1, 96)), 70, 104, 200, 4), (Launch(Kernel.UNIFORM, Tile(1, 32)), 3, 39, 136, 1),
    (Launch(Kernel.UNIFORM, Tile(1, 64)), 65, 72, 72, 1), (Launch(Kernel.UNIFORM, Tile(2, 64)), 130, 40, 264, 1),
]  # fmt: skip
GATED = [
    (ROW, 1, 80, 272, 2), (HELD, 5, 272, 544, 3), (HELD, 3, 48, 2112, 4), (Launch(Kernel.RING), 13, 80, 640, 2),
    (Launch(Kernel.WIDE, Tile(1, 96)), 33, 208, 136, 2), (Launch(Kernel.WIDE, Tile(2, 96)), 140, 112, 72, 2),
]  # fmt: skip


def named(case):
    launch, rows, columns, depth, _ = case
    return f"{launch.kernel.name.lower()}-{rows}x{columns}x{depth}"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    return EmulatedLinear(tmp_path_factory.mktemp("emulated_linear"))


def make(rows, columns, depth, dtype):
    x, weight = torch.randn(rows, depth), torch.randn(columns, depth) / depth**0.5
    return [t.to(dtype) for t in (x, weight, torch.randn(columns), torch.randn(rows, columns))]


def assert_product(got, p):
    wide = [None if t is None else t.double() for t in (p.x, p.weight, p.bias, p.residual)]
    expected = reference.linear(*wide, p.factor)
    bound = 2e-6 * (wide[0].abs() @ wide[1].abs().T + 1) + ROUNDING[p.x.dtype] * expected.abs()
    assert ((got.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("case", PLAIN, ids=map(named, PLAIN))
def test_products_with_bias_and_residual(emulated, case):
    launch, rows, columns, depth, multiprocessors = case
    for seed, dtype in enumerate(ROUNDING):
        x, weight, bias, residual = make(rows, columns, depth, dtype)
        emulated.set_up(multiprocessors, seed)
        plain = Product(x, weight)
        for p in (
            plain,
            plain._replace(bias=bias),
            plain._replace(residual=residual),
            plain._replace(bias=bias, residual=residual, factor=0.22),
        ):
            assert_product(emulated.product(p, launch), p)


@pytest.mark.parametrize("case", PLAIN, ids=map(named, PLAIN))
def test_a_factor_that_is_a_power_of_two_rounds_as_the_weight_times_it(emulated, case):
    launch, rows, columns, depth, multiprocessors = case
    x, weight, bias, residual = make(rows, columns, depth, torch.bfloat16)
    emulated.set_up(multiprocessors, 7)
    expected = emulated.product(Product(x, weight * 0.25, bias * 0.25, residual=residual), launch)
    assert torch.equal(emulated.product(Product(x, weight, bias, residual=residual, factor=0.25), launch), expected)


@pytest.mark.parametrize("case", GATED, ids=map(named, GATED))
def test_gates_are_rounded_as_if_the_product_were_stored(emulated, case):
    launch, rows, columns, depth, multiprocessors = case
    x, weight, _, _ = make(rows, columns, depth, torch.bfloat16)
    product = reference.linear(x.double(), weight.double()).bfloat16().double()
    for seed, gate in enumerate(("silu", "gelu", "gelu_tanh")):
        emulated.set_up(multiprocessors, seed)
        got = emulated.product(Product(x, weight), launch, gate)
        torch.testing.assert_close(got.double(), reference.act_and_mul(product, gate), atol=4e-2, rtol=4e-2)


def test_the_norm_of_one_row_is_that_of_its_kernel(emulated):
    x, weight, bias, residual = make(1, 72, 1032, torch.bfloat16)
    norm = RmsNorm(torch.rand(1032).bfloat16(), 1e-5, 1.0)
    emulated.set_up(2, 3)
    normed = ops.rms_norm(x, norm.weight, norm.eps, offset=norm.offset)
    p = Product(x, weight, bias, residual=residual, norm=norm, factor=0.22)
    assert_product(emulated.product(p, ROW), p._replace(x=normed))


def test_drawn_rows_of_the_weight_change_no_bit(emulated):
    x, weight, bias, residual = make(9, 1040, 2112, torch.bfloat16)
    p, counter = Product(x, weight, bias, residual=residual, factor=0.22), torch.zeros(1, dtype=torch.int32)
    emulated.set_up(4, 5)
    expected = emulated.product(p, HELD)
    assert_product(expected, p)
    assert torch.equal(emulated.product(p._replace(counter=counter), HELD), expected)
    assert counter.item() == 0


@pytest.mark.parametrize(
    ("launch", "rows", "columns", "depth"),
    [
        (ROW, 2, 40, 272),
        (HELD, 33, 40, 128),
        (Launch(Kernel.RING), 8, 40, 96),
        (Launch(Kernel.WIDE, Tile(1, 56)), 33, 40, 64),
    ],
)
def test_what_a_kernel_does_not_take_is_refused(emulated, launch, rows, columns, depth):
    x, weight, _, _ = make(rows, columns, depth, torch.bfloat16)
    with pytest.raises(ValueError, match="error"):
        emulated.product(Product(x, weight), launch)
