"""Products of codes of eight bits with such codes, on a GPU: exact where both are integers, else against float64.

The kernels are those of any form, in every tile; `choice` alone decides which of them the engine gets.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from octavo_kernels import cuda, ops, reference
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products import choice, w8a8
from octavo_kernels.products.choice import Form, W8A8Kernel, W8A8Launch
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import Activations, Codes, QuantisedWeight, Scheme

from .conftest import assert_a_graph_computes_the_same

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

HALF = [torch.bfloat16, torch.float16]
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
FORMS = [Form.INT8, Form.FP8, Form.FP8_BLOCKS]
ROWS = [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 100, 128, 129, 200, 256, 257, 300, 2048]
# (columns, depth): fewer columns than a tile, one stage and less, tails of the depth and of the last tile, real layers.
SHAPES = [(8, 16), (16, 128), (40, 144), (264, 576), (1000, 2112), (4096, 4096), (72, 14336), (9008, 320)]
PLAIN, ROW = W8A8Launch(W8A8Kernel.PLAIN), W8A8Launch(W8A8Kernel.ROW)
TILES = [
    W8A8Launch(W8A8Kernel.WIDE, consumers, tokens, height)
    for consumers, tokens in choice.W8A8_TILES
    for height in ((16, 48, 64) if consumers == 1 else (80, 128))
]


@pytest.fixture
def take(monkeypatch):
    """Makes products use one kernel, or skips the test where the chip has not got it."""

    def always(launch: W8A8Launch) -> None:
        if launch.kernel is W8A8Kernel.WIDE and not cuda.runs_hopper_code(torch.device("cuda", 0)):
            pytest.skip("these tiles are for Hopper")
        monkeypatch.setattr(choice, "choose_w8a8", lambda *_: launch)

    return always


@dataclass
class Case:
    x: Tensor
    weight: QuantisedWeight
    bias: Tensor
    residual: Tensor

    @property
    def group(self) -> int:
        return self.weight.scheme.activation_group

    def codes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Float64 codes `[T, depth]` and float32 scales `[T, groups]` of rows, by the reference."""
        kind = w8a8.DTYPE_OF[self.weight.scheme.activations]
        parts = x.float().split(self.group or x.shape[1], dim=1)
        quantised = [reference.quantise(part, kind) for part in parts]
        return torch.cat([c.double() for c, _ in quantised], 1), torch.cat([s for _, s in quantised], 1)

    def expected(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """The product, and its tolerance before it is rounded."""
        (codes, scales), weights = self.codes(x), self.weight.codes.double()
        if self.weight.scheme.codes is Codes.INT8:
            # Exact sums, then float32 operations in the order of the kernels.
            result = (codes @ weights.T).float() * (scales * self.weight.scales)
            for addend in (bias, residual):
                result = result if addend is None else result + addend.float()
            return result.double(), torch.zeros_like(result).double()
        place = torch.arange(self.weight.depth, device=x.device)
        wide_x = codes * scales.double()[:, place // (self.group or self.weight.depth)]
        wide = weights * self.weight.scales.double().T[:, place // self.weight.scheme.group]
        added = [None if t is None else t.double() for t in (bias, residual)]
        # Tensor cores keep about fourteen bits of what they add up of eight-bit floats.
        return reference.linear(wide_x, wide, *added), 2**-10 * (wide_x.abs() @ wide.abs().T)


def make(form, rows, columns, depth, dtype=torch.bfloat16) -> Case:
    torch.manual_seed(rows + columns + depth)
    x = torch.randn(rows, depth, device="cuda") * (torch.rand(rows, 1, device="cuda") * 10 + 0.01)
    wide = torch.randn(columns, depth, device="cuda") / depth**0.5
    cells = torch.int8 if form is Form.INT8 else torch.float8_e4m3fn
    if form is Form.FP8_BLOCKS:
        parts = [reference.quantise(part, cells) for part in wide.split(128, dim=1)]
        codes, scales = torch.cat([c.float() for c, _ in parts], 1).to(cells), torch.cat([s for _, s in parts], 1).T
    else:
        codes, scales = reference.quantise(wide, cells)
        scales = scales.T
    group = 128 if form is Form.FP8_BLOCKS else 0
    kinds = (Codes.INT8, Activations.INT8) if form is Form.INT8 else (Codes.FP8, Activations.FP8)
    scheme = Scheme(kinds[0], group or depth, kinds[1], group)
    bias, residual = torch.randn(columns, device="cuda"), torch.randn(rows, columns, device="cuda")
    weight = QuantisedWeight(scheme, codes, scales.contiguous())
    return Case(x.to(dtype), weight, bias.to(dtype), residual.to(dtype))


def product(case: Case, x: Tensor, bias=None, residual=None, **options) -> Tensor:
    out = torch.full((len(x), case.weight.columns), float("nan"), dtype=x.dtype, device="cuda")
    assert w8a8.launch(Product(x, ops.pack(case.weight), bias, residual=residual, **options), out)
    return out


def assert_right(case: Case, got: Tensor, x: Tensor, bias=None, residual=None) -> None:
    expected, off = case.expected(x, bias, residual)
    if case.weight.scheme.codes is Codes.INT8:
        assert torch.equal(got, expected.to(got.dtype))
    else:
        assert ((got.double() - expected).abs() <= off + 2 * ROUNDING[got.dtype] * expected.abs() + 1e-6).all()
        spread = (got.double() - expected).square().mean().sqrt()
        assert spread <= 2**-6 * expected.square().mean().sqrt()  # without one instruction of 64 it would be an eighth


@pytest.mark.parametrize("kind", [Activations.INT8, Activations.FP8], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("depth", [16, 64, 208, 1024, 4096, 8192 + 16, 14336, 16384])
@pytest.mark.parametrize("group", [0, 128])
def test_rows_become_the_references_codes(kind, dtype, depth, group):
    for rows in (1, 5, 300):
        x = (torch.randn(rows, depth, device="cuda") * torch.rand(rows, 1, device="cuda") * 50).to(dtype)
        x[0, : depth // 2] = 0.0
        if rows > 1:
            x[1], x[2] = 0.0, 1e-31
        coded = w8a8.quantise(x, kind, group)
        parts = [reference.quantise(part.float(), w8a8.DTYPE_OF[kind]) for part in x.split(group or depth, dim=1)]
        codes = torch.cat([c.view(torch.uint8) for c, _ in parts], 1)
        assert torch.equal(coded.codes.view(torch.uint8), codes)
        assert torch.equal(coded.scales.T, torch.cat([s for _, s in parts], 1))


@pytest.mark.parametrize("kind", [Activations.INT8, Activations.FP8], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("depth", [208, 4096, 8192])
@pytest.mark.parametrize("group", [0, 128])
def test_codes_of_a_norm_are_those_of_the_stored_norm(kind, dtype, depth, group):
    for rows in (1, 70):
        x = (torch.randn(rows, depth + 64, device="cuda") * 30).to(dtype)[:, :depth]
        for offset in (0.0, 1.0):
            norm = RmsNorm(torch.randn(depth, device="cuda").to(dtype), 1e-5, offset)
            torch.cuda.synchronize()  # kernels read weights from before the previous one has ended
            stored = ops.rms_norm(x, norm.weight, norm.eps, offset=offset)
            for got, expected in zip(
                w8a8.quantise(x, kind, group, norm), w8a8.quantise(stored, kind, group), strict=True
            ):
                assert torch.equal(got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


@pytest.mark.parametrize("kind", [Activations.INT8, Activations.FP8], ids=str)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_spoils_its_scale_and_no_other(kind, wrong):
    x = torch.randn(9, 512, device="cuda").bfloat16()
    right = w8a8.quantise(x, kind)
    x[4, 300] = wrong
    got, others = w8a8.quantise(x, kind), torch.arange(9, device="cuda") != 4
    assert got.scales[0].isnan().tolist() == [row == 4 for row in range(9)]
    assert torch.equal(got.scales[:, others], right.scales[:, others])
    assert torch.equal(got.codes.view(torch.uint8)[others], right.codes.view(torch.uint8)[others])


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("columns", "depth"), SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_products(dtype, form, columns, depth, rows):
    case = make(form, rows, columns, depth, dtype)
    for bias, residual in ((None, None), (case.bias, None), (None, case.residual), (case.bias, case.residual)):
        assert_right(case, product(case, case.x, bias, residual), case.x, bias, residual)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("launch", [PLAIN, *TILES], ids=lambda launch: "-".join(map(str, launch)))
def test_every_kernel_and_tile(take, form, launch):
    take(launch)
    for rows, columns, depth in ((1, 8, 16), (5, 280, 400), (17, 264, 2112), (130, 1016, 640), (600, 136, 1040)):
        case = make(form, min(rows, 8) if launch.tokens == 8 else rows, columns, depth)
        assert_right(case, product(case, case.x, case.bias, case.residual), case.x, case.bias, case.residual)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("columns", "depth"), [*SHAPES, (1008, 8192), (6144, 2064), (28672, 4096)])
def test_one_row_that_becomes_codes_on_the_way(take, dtype, form, columns, depth):
    case = make(form, 3, columns, depth, dtype)
    norm = RmsNorm(torch.rand(depth, device="cuda").to(dtype), 1e-5, 1.0)
    for row in range(3):
        x, residual = case.x[row : row + 1], case.residual[row : row + 1]
        take(ROW)
        assert_right(case, product(case, x), x)
        assert_right(case, product(case, x, case.bias, residual), x, case.bias, residual)
        if depth <= choice.ROW_NORMED:
            normed = ops.rms_norm(x, norm.weight, norm.eps, offset=norm.offset)
            assert torch.equal(product(case, x, case.bias, norm=norm), product(case, normed, case.bias))
        if columns % 16:
            continue
        out = torch.full((1, columns // 2), float("nan"), dtype=dtype, device="cuda")
        assert w8a8.launch(Product(x, ops.pack(case.weight), case.bias), out, ops.ACTIVATIONS["silu"])
        expected = reference.act_and_mul(product(case, x, case.bias).double(), "silu")
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=2 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("columns", "depth"), [(16, 16), (80, 144), (272, 576), (2048, 2112), (28672, 4096)])
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 33, 65, 129, 300])
def test_gated_products_are_rounded_as_if_stored(dtype, form, columns, depth, rows):
    case = make(form, rows, columns, depth, dtype)
    for bias in (None, case.bias):
        stored = product(case, case.x, bias)
        for kind in ("silu", "gelu", "gelu_tanh"):
            out = torch.full((rows, columns // 2), float("nan"), dtype=dtype, device="cuda")
            assert w8a8.launch(Product(case.x, ops.pack(case.weight), bias), out, ops.ACTIVATIONS[kind])
            expected = reference.act_and_mul(stored.double(), kind)
            torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=2 * ROUNDING[dtype])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("launch", [PLAIN, *TILES], ids=lambda launch: "-".join(map(str, launch)))
def test_gates_in_every_kernel_and_tile(take, form, launch):
    take(launch)
    case = make(form, 8 if launch.tokens == 8 else 150, 304, 656)
    out = torch.full((len(case.x), 152), float("nan"), dtype=case.x.dtype, device="cuda")
    assert w8a8.launch(Product(case.x, ops.pack(case.weight), case.bias), out, ops.ACTIVATIONS["silu"])
    expected = reference.act_and_mul(product(case, case.x, case.bias).double(), "silu")
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=2 * ROUNDING[case.x.dtype])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("columns", "depth"), [(264, 576), (4096, 4096), (72, 14336)])
def test_a_row_feels_neither_the_others_nor_their_number(form, columns, depth):
    case = make(form, max(ROWS), columns, depth)
    together = product(case, case.x, case.bias, case.residual, uniform=True)
    for rows in ROWS:
        for part in (slice(0, rows), slice(max(ROWS) - rows, None)):
            alone = product(case, case.x[part], case.bias, case.residual[part], uniform=rows == 1)
            assert torch.equal(alone, together[part]), rows


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [2, 16, 60, 300])
def test_a_broken_row_breaks_no_other(form, rows):
    case = make(form, rows, 1000, 1024)
    expected, broken = product(case, case.x), torch.arange(rows, device="cuda") % 3 == 1
    case.x[broken] = float("nan")
    got = product(case, case.x)
    assert torch.equal(got[~broken], expected[~broken])
    assert got[broken].isnan().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 8, 32, 64, 256, 2048])
@pytest.mark.parametrize(("columns", "depth"), [(6144, 4096), (4096, 14336), (28672, 4096)])
def test_the_same_bits_run_to_run(form, rows, columns, depth):
    case = make(form, rows, columns, depth)
    weight, out = ops.pack(case.weight), torch.empty_like(case.residual)
    first = product(case, case.x, residual=case.residual)
    differing = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(100):
        w8a8.launch(Product(case.x, weight, residual=case.residual), out)
        differing |= (out != first).any()
    assert not differing


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 16, 50, 300])
def test_strided_arguments_and_nothing_beside_the_output(form, rows):
    case = make(form, rows, 200, 512)
    wide = torch.randn(rows, 600, device="cuda").bfloat16()
    out = torch.full((rows + 1, 320), 7.0, dtype=torch.bfloat16, device="cuda")
    assert w8a8.launch(Product(wide[:, 40:552], ops.pack(case.weight)), out[:rows, 64:264])
    assert torch.equal(out[:rows, 64:264], product(case, wide[:, 40:552].contiguous()))
    assert (out[rows:] == 7).all()
    assert (out[:, :64] == 7).all()
    assert (out[:, 264:] == 7).all()


@pytest.mark.parametrize("form", FORMS)
def test_strides_that_mean_nothing_do_not_matter(form):
    """A single row of x and of the results, a single group of scales."""
    case = make(form, 1, 64, 128)
    x, out = (torch.zeros(n, 1, dtype=torch.bfloat16, device="cuda").T for n in (128, 64))
    x.copy_(case.x)
    scales = case.weight.scales.T.contiguous().T
    assert (x.stride(0), out.stride(0), scales.stride(0)) == (1, 1, 1)
    strange = QuantisedWeight(case.weight.scheme, case.weight.codes, scales)
    for options in ({}, {"uniform": True}):
        assert w8a8.launch(Product(x, ops.pack(strange), **options), out)
        assert torch.equal(out, product(case, case.x, **options))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 5, 60, 300])
def test_result_may_go_into_the_residual(form, rows):
    case = make(form, rows, 1000, 2048)
    expected = product(case, case.x, residual=case.residual)
    assert w8a8.launch(Product(case.x, ops.pack(case.weight), residual=case.residual), case.residual)
    assert torch.equal(case.residual, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 8, 24, 60, 200])
def test_a_chain_of_layers_in_a_graph(form, rows):
    """Each launch begins before the one whose result it reads has ended; the results are those of single calls."""
    up, down = (ops.pack(make(form, 1, n, k).weight) for n, k in ((6144, 1024), (1024, 3072)))
    norm = RmsNorm(torch.ones(1024, device="cuda").bfloat16(), 1e-5)
    x = torch.empty(rows, 1024, dtype=torch.bfloat16, device="cuda")
    middle = x.new_empty(rows, 3072)

    def chain(settle):
        for _ in range(12):
            ops.gated_linear(Product(x, up, out=middle, norm=norm), "silu")
            settle()
            ops.linear(Product(middle, down, out=x, residual=x))
            settle()

    torch.manual_seed(rows)
    assert_a_graph_computes_the_same(chain, x)


def test_integers_are_the_same_in_every_kernel(take):
    case = make(Form.INT8, 8, 264, 2112)
    results = []
    for launch in (PLAIN, *TILES):
        take(launch)
        results.append(product(case, case.x, case.bias, case.residual))
    take(ROW)
    for row in range(8):
        alone = product(case, case.x[row : row + 1], case.bias, case.residual[row : row + 1])
        assert torch.equal(alone[0], results[0][row])
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("form", FORMS)
def test_operations_launch_it(form):
    case = make(form, 40, 1024, 512)
    weight = ops.pack(case.weight)
    norm = RmsNorm(torch.rand(512, device="cuda").bfloat16(), 1e-5)
    torch.cuda.synchronize()  # kernels read weights from before the previous one has ended
    normed = ops.rms_norm(case.x, norm.weight, norm.eps)
    assert torch.equal(ops.linear(Product(case.x, weight, case.bias, norm=norm)), product(case, normed, case.bias))
    dense = torch.nn.functional.linear(case.x.float(), weight_of(case)).bfloat16()
    got = ops.linear(Product(case.x, weight))
    assert (got - dense).float().norm() < 0.05 * dense.float().norm()


def weight_of(case: Case) -> Tensor:
    place = torch.arange(case.weight.depth, device="cuda") // case.weight.scheme.group
    return case.weight.codes.float() * case.weight.scales.T[:, place]
