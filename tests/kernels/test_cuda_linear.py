"""Matrix products of few rows on a GPU, against float64, bit for bit among themselves, and inside a CUDA graph."""

import pytest
import torch

from octavo_kernels import ops, reference
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products import choice, dense_cuda
from octavo_kernels.products.product import Product

from .conftest import assert_a_graph_computes_the_same

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

HALF = [torch.bfloat16, torch.float16]
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
ROWS = [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65]
# (columns, depth): those of real layers, and ragged ones: fewer groups of rows than multiprocessors, uneven tiles,
# tails of a chunk and of a slice of the depth, warps and blocks with unequal parts of it, little more than a ring has;
# then sizes that our kernels leave to cuBLAS.
OURS = [
    (6144, 1024), (1024, 3072), (4096, 4096), (8, 64), (40, 128), (264, 544), (264, 576), (1000, 2112), (4104, 4160),
    (72, 14336), (9000, 320), (1088, 5120), (1048, 2048), (8456, 2048),
]  # fmt: skip
OTHERS = [(100, 64), (64, 100), (63, 40)]
LARGE = [(28672, 4096), (8192, 5120), (33000, 1024)]


def make(rows, columns, depth, dtype):
    torch.manual_seed(rows + columns + depth)
    x, weight = torch.randn(rows, depth, device="cuda"), torch.randn(columns, depth, device="cuda") / depth**0.5
    bias, residual = torch.randn(columns, device="cuda"), torch.randn(rows, columns, device="cuda")
    return [t.to(dtype) for t in (x, weight, bias, residual)]


def assert_product(got, x, weight, bias=None, residual=None, factor=1.0):
    wide = [None if t is None else t.double() for t in (x, weight, bias, residual)]
    x64, w64, bias64, residual64 = wide
    expected = reference.linear(x64, w64, bias64, residual64, factor)
    # A float32 sum in some order, then rounded; torch may round the product, then with one addend, then the sum.
    addends = ((), (bias64,), (None, residual64, factor))
    steps = [reference.linear(x64, w64, *some) for some in addends] + [expected]
    bound = 2e-6 * (wide[0].abs() @ wide[1].abs().T + 1) + ROUNDING[x.dtype] * sum(step.abs() for step in steps)
    assert ((got.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("columns", "depth"), OURS + OTHERS)
@pytest.mark.parametrize("rows", ROWS)
def test_linear(dtype, rows, columns, depth):
    x, weight, bias, residual = make(rows, columns, depth, dtype)
    for b, r in ((None, None), (bias, None), (None, residual), (bias, residual)):
        out = torch.full_like(residual, float("nan"))
        assert ops.linear(Product(x, weight, b, out=out, residual=r)) is out
        assert_product(out, x, weight, b, r)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("columns", "depth"), [(4096, 4096), (264, 576), (1000, 2112), (8456, 2048), (28672, 4096), (63, 40)]
)
@pytest.mark.parametrize("rows", [1, 2, 9, 17, 33, 50, 65])
def test_a_factor_is_of_the_product_and_its_bias(dtype, rows, columns, depth):
    """Kernels of ours and the libraries', each with some of these."""
    x, weight, bias, residual = make(rows, columns, depth, dtype)
    for b in (None, bias):
        got = ops.linear(Product(x, weight, b, residual=residual, factor=0.22))
        assert_product(got, x, weight, b, residual, 0.22)
        in_place = residual.clone()
        ops.linear(Product(x, weight, b, out=in_place, residual=in_place, factor=0.22))
        assert torch.equal(in_place, got)


def test_a_factor_that_is_a_power_of_two_rounds_as_the_weight_times_it():
    """To the bit: neither is the residual multiplied, nor is anything rounded before it is added."""
    for rows in (1, 8, 20, 50):
        x, weight, _, residual = make(rows, 6144, 4096, torch.bfloat16)
        expected = ops.linear(Product(x, weight * 0.25, residual=residual))
        assert torch.equal(ops.linear(Product(x, weight, residual=residual, factor=0.25)), expected)


def test_the_choice_of_a_library_is_nobody_elses():
    before = torch.backends.cuda.preferred_blas_library()
    for rows in (48, choice.LT_ROWS, choice.LT_ROWS + 1):
        x, weight, bias, residual = make(rows, 5120, 4096, torch.bfloat16)
        assert_product(ops.linear(Product(x, weight, bias, residual=residual)), x, weight, bias, residual)
        assert torch.backends.cuda.preferred_blas_library() == before


def test_a_graph_keeps_the_library_that_was_chosen():
    x, weight, bias, _ = make(48, 5120, 4096, torch.bfloat16)
    expected = ops.linear(Product(x, weight, bias))
    out, graph = torch.empty_like(expected), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        ops.linear(Product(x, weight, bias, out=out))
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, expected)


@pytest.mark.parametrize(("columns", "depth"), OURS)
@pytest.mark.parametrize("rows", [1, 2, 8, 16])
def test_decode_sized_products_are_ours(rows, columns, depth):
    x, weight, bias, residual = make(rows, columns, depth, torch.bfloat16)
    assert dense_cuda.launch_linear(Product(x, weight, bias, residual=residual), torch.empty_like(residual))


@pytest.mark.parametrize("rows", [choice.FEW_ROWS + 1, choice.SOME_ROWS])
@pytest.mark.parametrize(
    ("columns", "depth", "ours"),
    [(6144, 1024, False), (6144, 4096, True), (28672, 4096, True), (1088, 5120, False), (8456, 2048, False)],
)
def test_large_products_of_dozens_of_rows_are_ours_where_tiles_fill_the_chip(rows, columns, depth, ours):
    x, weight, bias, residual = make(rows, columns, depth, torch.bfloat16)
    assert dense_cuda.launch_linear(Product(x, weight, bias, residual=residual), torch.empty_like(residual)) == ours


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("columns", "depth", "rows"),
    [(72, 14336, 16), *((*shape, choice.FEW_ROWS) for shape in [*OURS, *LARGE] if shape[1] < 14336)],
)
def test_a_row_feels_neither_the_others_nor_their_number(dtype, columns, depth, rows):
    """From two to the most that our kernel takes: a batch that shrinks or grows leaves a sequence's bits alone."""
    x, weight, bias, residual = make(rows, columns, depth, dtype)
    together = ops.linear(Product(x, weight, bias, residual=residual))
    assert_product(together, x, weight, bias, residual)
    for n in {2, 8, 9, min(rows, 17), rows - 1}:
        assert torch.equal(ops.linear(Product(x[:n], weight, bias, residual=residual[:n])), together[:n])
        assert torch.equal(ops.linear(Product(x[-n:], weight, bias, residual=residual[-n:])), together[-n:])


@pytest.mark.parametrize(("columns", "depth"), [(1024, 3072), (16384, 2048), (28672, 4096), (8192, 5120)])
@pytest.mark.parametrize("rows", [1, 8, 9, 32, 50])
def test_the_same_bits_run_to_run(rows, columns, depth):
    """Also where weights are read again and again into the same memory, from the device's or, those that fit into it,
    from the L2."""
    x, weight, bias, residual = make(rows, columns, depth, torch.bfloat16)
    first = ops.linear(Product(x, weight, bias, residual=residual))
    differing = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(200):
        differing |= (ops.linear(Product(x, weight, bias, residual=residual)) != first).any()
    assert not differing


# The last two are dealt out: too small a depth, too few rows.
DRAWN = [(28672, 4096), (16384, 5120), (33008, 4096), (25360, 64), (80, 128)]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("columns", "depth"), DRAWN)
@pytest.mark.parametrize("rows", [2, 9, 16, 32])
def test_drawing_rows_of_the_weights_changes_no_bit(dtype, rows, columns, depth):
    x, weight, bias, residual = make(rows, columns, depth, dtype)
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    for b, r in ((None, None), (bias, residual)):
        expected = ops.linear(Product(x, weight, b, residual=r))
        for _ in range(20):
            out = torch.full_like(expected, float("nan"))
            assert torch.equal(ops.linear(Product(x, weight, b, out=out, residual=r, counter=counter)), expected)
            assert counter.item() == 0
    gated = ops.gated_linear(Product(x, weight, bias, counter=counter), "silu")
    assert torch.equal(gated, ops.gated_linear(Product(x, weight, bias), "silu"))
    assert counter.item() == 0


def test_products_that_draw_follow_each_other_in_a_graph_and_beside_another_stream():
    x, weight, _, _ = make(8, 28672, 4096, torch.bfloat16)
    back = torch.randn(4096, 28672, device="cuda").bfloat16() / 28672**0.5
    head = torch.randn(33000, 4096, device="cuda").bfloat16() / 64

    def chain(counter):
        hidden = ops.linear(Product(x, weight, counter=counter))
        return ops.linear(Product(ops.linear(Product(hidden, back, counter=counter)), head, counter=counter))

    expected = chain(None)
    graphs, streams = [], [torch.cuda.Stream() for _ in range(2)]
    for stream in streams:
        counter = torch.zeros(1, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            chain(counter)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                out = chain(counter)
        graphs.append((graph, out, counter))
    for _ in range(20):
        for stream, (graph, out, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                out.fill_(float("nan"))
                graph.replay()
        torch.cuda.synchronize()
        for _, out, counter in graphs:
            assert torch.equal(out, expected)
            assert counter.item() == 0


@pytest.mark.parametrize(("rows", "columns"), [(1, 192), (16, 192), (50, 33032)])
def test_strided_arguments_and_nothing_beside_the_output(rows, columns):
    wide_x = torch.randn(rows, 600, device="cuda").half()
    wide_weight = torch.randn(columns + 8, 640, device="cuda").half()
    x, weight = wide_x[:, 40:552], wide_weight[8:, 64:576]
    out = torch.full((rows + 1, columns + 128), 7.0, dtype=torch.float16, device="cuda")
    ops.linear(Product(x, weight, out=out[:rows, 64 : columns + 64]))
    assert torch.equal(out[:rows, 64 : columns + 64], ops.linear(Product(x.contiguous(), weight.contiguous())))
    assert (out[rows:] == 7).all()
    assert (out[:, :64] == 7).all()
    assert (out[:, columns + 64 :] == 7).all()


@pytest.mark.parametrize(("rows", "columns", "depth"), [(5, 1024, 2048), (50, 6144, 4096)])
def test_result_may_go_into_the_residual(rows, columns, depth):
    x, weight, _, residual = make(rows, columns, depth, torch.bfloat16)
    expected = ops.linear(Product(x, weight, residual=residual))
    assert ops.linear(Product(x, weight, out=residual, residual=residual)) is residual
    assert torch.equal(residual, expected)


@pytest.mark.parametrize(
    ("rows", "width", "wide"), [(1, 1024, 3072), (8, 1024, 3072), (24, 1024, 3072), (50, 4096, 6144)]
)
def test_a_chain_of_products_in_a_graph(rows, width, wide):
    """Each product begins before the one whose result it reads has ended; the results are those of single calls."""
    weights = [torch.randn(n, k, device="cuda").bfloat16() / k**0.5 for n, k in ((wide, width), (width, wide))]
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


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("width", "depth"), [(3072, 1024), (14336, 512), (14336, 4096), (40, 128), (72, 576), (40, 96)]
)
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 32, 65])
def test_gated_linear(dtype, rows, width, depth):
    x, weight, bias, _ = make(rows, 2 * width, depth, dtype)
    for b in (None, bias):
        for kind in ("silu", "gelu", "gelu_tanh"):
            out = torch.full((rows, width), float("nan"), dtype=dtype, device="cuda")
            assert ops.gated_linear(Product(x, weight, b, out=out), kind) is out
            expected = reference.act_and_mul(ops.linear(Product(x, weight, b)).double(), kind)
            torch.testing.assert_close(out.double(), expected, atol=1e-2, rtol=4 * ROUNDING[dtype])


@pytest.mark.parametrize("rows", [1, 16])
def test_gated_products_of_a_layer_are_one_launch(rows):
    x, weight, _, _ = make(rows, 6144, 1024, torch.bfloat16)
    assert dense_cuda.launch_linear(Product(x, weight), x.new_empty(rows, 3072), ops.ACTIVATIONS["silu"])


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("columns", "depth"), [(4096, 1024), (6144, 4096), (4608, 2048), (272, 576), (1008, 2112), (80, 9216)]
)
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 16, 17])
def test_norms_on_the_way_change_no_bit(dtype, columns, depth, rows):
    """A product normalises its rows itself or not, by their number, which must not show."""
    x, weight, bias, residual = make(rows, columns, depth, dtype)
    wide = torch.randn(rows, depth + 64, device="cuda").to(dtype)[:, :depth] * 30
    for rows_in, offset in ((x, 0.0), (wide, 1.0)):
        norm = RmsNorm(torch.rand(depth, device="cuda").to(dtype), 1e-5, offset)
        torch.cuda.synchronize()  # kernels read weights from before the previous one has ended
        normed = ops.rms_norm(rows_in, norm.weight, norm.eps, offset=offset)
        assert torch.equal(ops.linear(Product(rows_in, weight, norm=norm)), ops.linear(Product(normed, weight)))
        assert torch.equal(
            ops.linear(Product(rows_in, weight, bias, residual=residual, norm=norm)),
            ops.linear(Product(normed, weight, bias, residual=residual)),
        )
        assert torch.equal(
            ops.linear(Product(rows_in, weight, bias, residual=residual, norm=norm, factor=0.22)),
            ops.linear(Product(normed, weight, bias, residual=residual, factor=0.22)),
        )
        gated = ops.gated_linear(Product(rows_in, weight, norm=norm), "silu")
        assert torch.equal(gated, ops.gated_linear(Product(normed, weight), "silu"))
        assert gated.isfinite().all()


@pytest.mark.parametrize(("columns", "depth"), [(4096, 1024), (28672, 4096)])
def test_the_norm_of_one_row_is_no_launch_of_its_own(columns, depth):
    x, weight, _, _ = make(1, columns, depth, torch.bfloat16)
    norm, silu = RmsNorm(torch.ones_like(x[0])), ops.ACTIVATIONS["silu"]
    assert dense_cuda.launch_linear(Product(x, weight, norm=norm), x.new_empty(1, columns // 2), silu)
    assert dense_cuda.launch_linear(Product(x, weight, norm=norm), x.new_empty(1, columns))
