"""Products with quantised weights on the CPU, against their dequantised matrices and against whole numbers."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from octavo_kernels import _cpu, ops, reference
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import DTYPES as CODE_DTYPES
from octavo_kernels.products.weights import Activations, Codes, QuantisedWeight, Scheme, dequantise

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}
KINDS = [
    (Codes.INT4, False), (Codes.INT4, True), (Codes.INT8, False), (Codes.INT8, True), (Codes.FP4, False),
    (Codes.FP8, False),
]  # fmt: skip
WHOLE = 1 << 20


def random_weight(
    codes: Codes, columns: int, depth: int, group: int, zeros: bool = False, order: bool = False,
    activations: Activations = Activations.AS_GIVEN, activation_group: int = 0,
) -> QuantisedWeight:  # fmt: skip
    groups = -(-depth // group)
    width = depth // 2 if codes in (Codes.INT4, Codes.FP4) else depth
    drawn = torch.randint(0, 256, (columns, width), dtype=torch.uint8)
    if codes is Codes.FP8:
        drawn[drawn & 127 == 127] = 5  # NaN
    size = {Codes.INT4: 4, Codes.INT8: 64, Codes.FP4: 3, Codes.FP8: 100}[codes]
    points = torch.randint(0, 16 if codes is Codes.INT4 else 256, (groups, columns), dtype=torch.uint8)
    return QuantisedWeight(
        Scheme(codes, group, activations, activation_group),
        drawn.view(CODE_DTYPES[codes]),
        (torch.rand(groups, columns) + 0.5) / (size * depth**0.5),
        points.view(CODE_DTYPES[codes]) if zeros else None,
        torch.randperm(depth).int() if order else None,
    )


def packed(weight: QuantisedWeight):
    return ops.pack(replace(weight))


def assert_as_dequantised(x: Tensor, weight: QuantisedWeight, bias: Tensor | None, residual: Tensor | None) -> None:
    matrix = dequantise(weight).double()
    wide = [None if t is None else t.double() for t in (bias, residual)]
    product = reference.linear(x.double(), matrix, wide[0])
    expected = reference.linear(x.double(), matrix, *wide)
    out = ops.linear(Product(x, packed(weight), bias, residual=residual))
    assert out.dtype is x.dtype
    bound = 2e-6 * (x.double().abs() @ matrix.abs().T + 1) + ROUNDING[x.dtype] * (product.abs() + expected.abs())
    assert ((out.double() - expected).abs() <= bound).all()


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("codes", "zeros"), KINDS)
@pytest.mark.parametrize(
    ("columns", "depth", "group"),
    [(1, 8, 8), (7, 100, WHOLE), (70, 96, 16), (129, 578, 32), (200, 320, 128), (64, 700, 24)],
)
def test_weights_in_codes_are_their_dequantised_matrix(level, dtype, codes, zeros, columns, depth, group):
    weight = random_weight(codes, columns, depth, group, zeros)
    bias = torch.randn(columns).to(dtype)
    for rows in (0, 1, 7, 9, 35):
        x, residual = torch.randn(rows, depth).to(dtype), torch.randn(rows, columns).to(dtype)
        assert_as_dequantised(x, weight, None, None)
        assert_as_dequantised(x, weight, bias, residual)


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("codes", "zeros"), KINDS)
@pytest.mark.parametrize(("depth", "group"), [(96, 32), (100, 20), (320, WHOLE)])
def test_an_order_of_the_columns_of_x(level, dtype, codes, zeros, depth, group):
    weight = random_weight(codes, 40, depth, group, zeros, order=True)
    for rows in (2, 20):
        assert_as_dequantised(torch.randn(rows, depth).to(dtype), weight, None, None)


@pytest.mark.parametrize(("codes", "zeros"), KINDS)
def test_every_code_is_the_number_it_stands_for(level, codes, zeros):
    """A row of x with a single one picks a code: exact, so that a wrong neighbour or zero point cannot hide."""
    depth = 256
    weight = random_weight(codes, 16, depth, 64, zeros)
    if codes is not Codes.FP8:
        weight.codes.view(torch.uint8)[:] = torch.arange(weight.codes.shape[1], dtype=torch.uint8)
    weight.scales[:] = 2.0 ** torch.randint(-3, 4, weight.scales.shape)
    for dtype in DTYPES:
        for rows in (torch.eye(depth), torch.eye(depth)[5:6]):
            out = ops.linear(Product(rows.to(dtype), packed(weight)))
            assert torch.equal(out.float(), (rows @ dequantise(weight).T).to(dtype).float())


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("codes", "zeros", "depth", "group", "activations"),
    [
        (Codes.INT4, True, 330, 32, Activations.AS_GIVEN),
        (Codes.INT4, False, 1100, 128, Activations.AS_GIVEN),
        (Codes.FP4, False, 96, 16, Activations.AS_GIVEN),
        (Codes.INT8, True, 330, WHOLE, Activations.AS_GIVEN),
        (Codes.FP8, False, 1100, WHOLE, Activations.FP8),
        (Codes.INT8, True, 1100, WHOLE, Activations.INT8),
        (Codes.INT8, False, 330, 32, Activations.INT8),
    ],
)
def test_a_row_feels_neither_the_others_nor_their_number(
    level, dtype, codes, zeros, depth, group, activations, threads
):
    counts = [*range(1, 10), 15, 16, 17, 31, 32, 33, 48, 49, 64, 65, 128, 129, 150, 257]
    weight = packed(random_weight(codes, 100, depth, group, zeros, activations=activations))
    x, bias = torch.randn(counts[-1], depth).to(dtype), torch.randn(100).to(dtype)
    together = ops.linear(Product(x, weight, bias))
    for n in counts:
        assert torch.equal(ops.linear(Product(x[:n], weight, bias)), together[:n])
        assert torch.equal(ops.linear(Product(x[-n:], weight, bias)), together[-n:])
    for n in (1, 5):
        ops.set_num_threads(n)
        assert torch.equal(ops.linear(Product(x, weight, bias)), together)


def integer_oracle(x: Tensor, weight: QuantisedWeight, bias: Tensor, residual: Tensor) -> Tensor:
    """The product's definition, operation by operation: sums of whole numbers, then float32."""
    scheme, depth = weight.scheme, weight.depth
    codes, middle = weight.codes.long(), 0
    if scheme.codes is Codes.INT4:
        codes, middle = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1), 8
    wide = x.float() if weight.order is None else x.float()[:, weight.order.long()]
    x_group = min(scheme.activation_group or depth, depth)
    total = torch.zeros(len(x), len(codes))
    ends = sorted({*range(0, depth, scheme.group), *range(0, depth, x_group), depth})
    of_x = [reference.quantise(wide[:, k : k + x_group], torch.int8) for k in range(0, depth, x_group)]
    whole = torch.cat([c for c, _ in of_x], dim=1).long()
    for begin, end in pairwise(ends):
        group = begin // scheme.group
        zero = middle if weight.zeros is None else weight.zeros[group].long()[:, None]
        sums = whole[:, begin:end] @ (codes[:, begin:end] - zero).T
        total += sums.float() * (weight.scales[group] * of_x[begin // x_group][1])
    return (total + bias.float() + residual.float()).to(x.dtype)


INTEGERS = [
    (7, 100, WHOLE, 0, False), (130, 577, WHOLE, 0, True), (64, 256, 64, 0, False), (40, 320, 32, 32, True),
    (48, 400, 16, 32, False), (33, 200, WHOLE, 50, True), (65, 200, 24, 0, False), (20, 256, 64, 16, False),
]  # fmt: skip


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("columns", "depth", "group", "activation_group", "order"), INTEGERS)
@pytest.mark.parametrize("codes", [Codes.INT8, Codes.INT4])
@pytest.mark.parametrize("zeros", [False, True])
def test_integers_have_the_same_bits_on_every_level(
    dtype, columns, depth, group, activation_group, order, codes, zeros
):
    depth += depth % 2 if codes is Codes.INT4 else 0
    order = order and not activation_group
    weight = random_weight(codes, columns, depth, group, zeros, order, Activations.INT8, activation_group)
    bias, before = torch.randn(columns).to(dtype), _cpu.level()
    for rows in (1, 4, 16, 37):
        x, residual = (torch.randn(rows, depth) * 10).to(dtype), torch.randn(rows, columns).to(dtype)
        x[0] = 0
        expected = integer_oracle(x, weight, bias, residual)
        for level in _cpu.levels():
            _cpu.set_level(level)
            out = ops.linear(Product(x, packed(weight), bias, residual=residual))
            _cpu.set_level(before)
            assert torch.equal(out, expected), level


def test_the_largest_integers_do_not_overflow(level):
    """Bytes at their limits, whose products in pairs exceed an int16, over a deep group."""
    depth = 65536
    for code, zero in ((127, -128), (-128, 127), (-128, -128), (127, 127)):
        weight = QuantisedWeight(
            Scheme(Codes.INT8, depth, Activations.INT8),
            torch.full((17, depth), code, dtype=torch.int8),
            torch.ones(1, 17),
            torch.full((1, 17), zero, dtype=torch.int8),
        )
        out = ops.linear(Product(torch.full((3, depth), -127.0), packed(weight)))
        assert (out == float(-127 * (code - zero) * depth)).all()


@pytest.mark.parametrize("rows", [1, 3, 40, 130])
@pytest.mark.parametrize("activations", [Activations.AS_GIVEN, Activations.INT8])
def test_nothing_is_written_beside_the_output(level, rows, activations):
    weight = packed(random_weight(Codes.INT8, 45, 40, WHOLE, activations=activations))
    for dtype in DTYPES:
        x = torch.randn(rows, 60).to(dtype)[:, 7:47]
        out = torch.full((rows + 1, 60), 7.0, dtype=dtype)
        assert ops.linear(Product(x, weight, out=out[:rows, 5:50])).data_ptr() == out[:, 5:].data_ptr()
        assert torch.equal(out[:rows, 5:50], ops.linear(Product(x.contiguous(), weight)))
        assert (out[rows:] == 7).all()
        assert (out[:, :5] == 7).all()
        assert (out[:, 50:] == 7).all()


def test_the_result_may_go_into_the_residual(level):
    weight, x = packed(random_weight(Codes.INT4, 70, 64, 32)), torch.randn(40, 64)
    residual = torch.randn(40, 70)
    expected = ops.linear(Product(x, weight, residual=residual))
    assert torch.equal(ops.linear(Product(x, weight, out=residual, residual=residual)), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activations", [Activations.AS_GIVEN, Activations.INT8])
def test_nan_and_infinity_stay_in_their_row(level, dtype, activations):
    weight = packed(random_weight(Codes.INT8, 20, 100, 50, activations=activations))
    x = torch.randn(40, 100).to(dtype)
    expected = ops.linear(Product(x, weight))
    x[3, 99], x[17, 0] = float("nan"), float("inf")
    out = ops.linear(Product(x, weight))
    broken = torch.zeros(40, dtype=torch.bool)
    broken[[3, 17]] = True
    assert not out[broken].isfinite().any()
    assert torch.equal(out[~broken], expected[~broken])


def test_a_code_that_is_nan_breaks_its_column_only(level):
    weight = random_weight(Codes.FP8, 20, 100, 32)
    x, expected = torch.randn(3, 100), ops.linear(Product(torch.ones(3, 100), packed(weight)))
    weight.codes.view(torch.uint8)[7, 99] = 0xFF
    out = ops.linear(Product(torch.ones_like(x), packed(weight)))
    assert out[:, 7].isnan().all()
    assert torch.equal(out[:, :7], expected[:, :7])
    assert torch.equal(out[:, 8:], expected[:, 8:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activations", list(Activations))
def test_norm_and_gate(level, dtype, activations):
    weight = packed(random_weight(Codes.INT8, 64, 96, WHOLE, activations=activations))
    x, bias = torch.randn(5, 96).to(dtype), torch.randn(64).to(dtype)
    norm = RmsNorm(torch.rand(96).to(dtype), 1e-5, 1.0)
    normed = torch.empty_like(x)
    rows = ops.rms_norm(x, norm.weight, 1e-5, offset=1.0)
    product = ops.linear(Product(rows, weight, bias))
    assert torch.equal(ops.linear(Product(x, weight, bias, norm=norm, normed=normed)), product)
    assert torch.equal(normed, rows)
    out, scratch = torch.empty(5, 32, dtype=dtype), torch.empty(5, 64, dtype=dtype)
    gated = ops.gated_linear(Product(x, weight, bias, out=out, norm=norm), "silu", scratch)
    assert gated is out
    assert torch.equal(gated, ops.act_and_mul(product, "silu"))


def test_activations_in_fp8_are_taken_as_given(level):
    given = random_weight(Codes.FP8, 40, 128, 128)
    fp8 = replace(given, scheme=given.scheme._replace(activations=Activations.FP8, activation_group=128))
    x = torch.randn(5, 128).bfloat16()
    assert torch.equal(ops.linear(Product(x, packed(fp8))), ops.linear(Product(x, packed(given))))


@pytest.mark.parametrize(
    ("codes", "group", "activation_group", "order", "message"),
    [
        (Codes.FP8, 32, 0, False, "FP8 weights and INT8 activations have no kernel"),
        (Codes.FP4, 32, 0, False, "FP4 weights and INT8 activations have no kernel"),
        (Codes.INT8, 32, 48, False, "groups of 48 activations and of 32 codes overlap"),
        (Codes.INT8, 32, 32, True, "an order of the columns of x is for activations with one scale a row"),
        (Codes.INT4, 7, 0, False, "groups of 7 codes in 4 bits begin within a byte"),
    ],
)
def test_what_no_kernel_computes_is_refused(codes, group, activation_group, order, message):
    weight = random_weight(codes, 8, 96, group, False, order, Activations.INT8, activation_group)
    with pytest.raises(ValueError, match=message):
        ops.pack(weight)


def test_wrong_arguments_are_named():
    weight = packed(random_weight(Codes.INT4, 8, 96, 32))
    with pytest.raises(ValueError, match="x must have 96 columns, not 95"):
        ops.linear(Product(torch.zeros(2, 95), weight))
    with pytest.raises(TypeError, match=r"bias must be torch\.float32"):
        ops.linear(Product(torch.zeros(2, 96), weight, torch.zeros(8).half()))
    with pytest.raises(ValueError, match="residual must have shape"):
        ops.linear(Product(torch.zeros(2, 96), weight, residual=torch.zeros(2, 9)))
    with pytest.raises(ValueError, match="factor is for a product with a residual and a weight"):
        ops.linear(Product(torch.zeros(2, 96), weight, residual=torch.zeros(2, 8), factor=0.5))
    with pytest.raises(TypeError, match=r"scales must be torch\.float32"):
        ops.pack(replace(random_weight(Codes.INT4, 8, 96, 32), scales=torch.zeros(3, 8).half()))
