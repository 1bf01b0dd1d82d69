"""Products and attention whose rows feel neither the others nor their number, bit for bit."""

import pytest
import torch

from octavo_kernels import ops, reference
from octavo_kernels.attention.plan import AttentionPlan
from octavo_kernels.products.product import Product

from .conftest import assert_a_graph_computes_the_same

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

HALF = [torch.bfloat16, torch.float16]
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
# (columns, depth): real layers, then fewer columns than a tile, odd ones, and a tail of the depth.
SHAPES = [(6144, 1024), (1024, 3072), (4096, 4096), (1024, 14336), (30000, 512), (8, 64), (40, 128), (263, 520)]
ROWS = [1, 2, 8, 63, 64, 65, 128, 129, 300, 1100]  # of every size of tile


def make(rows, columns, depth, dtype):
    torch.manual_seed(rows + columns + depth)
    x, weight = torch.randn(rows, depth, device="cuda"), torch.randn(columns, depth, device="cuda") / depth**0.5
    bias, residual = torch.randn(columns, device="cuda"), torch.randn(rows, columns, device="cuda")
    return [t.to(dtype) for t in (x, weight, bias, residual)]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("columns", "depth"), SHAPES)
def test_products_are_right_and_rows_feel_nothing(dtype, columns, depth):
    x, weight, bias, residual = make(max(ROWS), columns, depth, dtype)
    for b, r, factor in ((None, None, 1.0), (bias, None, 1.0), (None, residual, 1.0), (bias, residual, 0.22)):
        together = torch.full_like(residual, float("nan"))
        assert ops.linear(Product(x, weight, b, out=together, residual=r, uniform=True, factor=factor)) is together
        wide = [None if t is None else t.double() for t in (x, weight, b, r)]
        expected = reference.linear(*wide, factor)
        bound = 2e-6 * (wide[0].abs() @ wide[1].abs().T + 1) + ROUNDING[dtype] * expected.abs()
        assert ((together.double() - expected).abs() <= bound).all()
        for n in ROWS:
            for part in (slice(0, n), slice(max(ROWS) - n, None)):
                some = None if r is None else r[part]
                alone = ops.linear(Product(x[part], weight, b, residual=some, uniform=True, factor=factor))
                assert torch.equal(alone, together[part]), n


def test_strided_arguments_and_nothing_beside_the_output():
    wide_x, wide_weight = torch.randn(70, 600, device="cuda").half(), torch.randn(200, 640, device="cuda").half()
    x, weight = wide_x[:, 40:552], wide_weight[8:, 64:576]
    out = torch.full((71, 321), 7.0, dtype=torch.float16, device="cuda")
    ops.linear(Product(x, weight, out=out[:70, 65:257], uniform=True))
    assert torch.equal(out[:70, 65:257], ops.linear(Product(x.contiguous(), weight.contiguous(), uniform=True)))
    assert (out[70:] == 7).all()
    assert (out[:, :65] == 7).all()
    assert (out[:, 257:] == 7).all()


@pytest.mark.parametrize("rows", [1, 100])
def test_a_chain_of_products_in_a_graph(rows):
    """Each product begins before the one whose result it reads has ended; the results are those of single calls."""
    weights = [torch.randn(n, k, device="cuda").bfloat16() / k**0.5 for n, k in ((3072, 1024), (1024, 3072))]
    x = torch.empty(rows, 1024, dtype=torch.bfloat16, device="cuda")
    up = torch.empty(rows, 3072, dtype=torch.bfloat16, device="cuda")

    def chain(settle):
        for _ in range(12):
            ops.linear(Product(x, weights[0], out=up, uniform=True))
            settle()
            ops.linear(Product(up, weights[1], out=x, residual=x, uniform=True))
            settle()

    torch.manual_seed(rows)
    assert_a_graph_computes_the_same(chain, x)


@pytest.mark.parametrize("rows", [1, 100])
def test_gated_products_are_rounded_as_if_stored(rows):
    x, weight, bias, _ = make(rows, 6144, 1024, torch.bfloat16)
    expected = ops.act_and_mul(ops.linear(Product(x, weight, bias, uniform=True)), "silu")
    assert torch.equal(ops.gated_linear(Product(x, weight, bias, uniform=True), "silu"), expected)


@pytest.mark.parametrize("argument", ["x", "weight"])
def test_rows_that_cannot_be_copied_are_refused(argument):
    tensors = {"x": torch.zeros(4, 68, device="cuda").half(), "weight": torch.zeros(8, 68, device="cuda").half()}
    tensors[argument] = tensors[argument][:, 4:]
    other = "weight" if argument == "x" else "x"
    tensors[other] = tensors[other][:, :64].contiguous()
    with pytest.raises(ValueError, match=argument):
        ops.linear(Product(**tensors, uniform=True))


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (3, 3)])
def test_a_query_sees_the_same_bits_however_its_prompt_is_cut(heads, kv_heads, head_dim, window):
    """All at once, in chunks, token by token, and beside other sequences."""
    torch.manual_seed(head_dim)
    tokens, block_size, dtype = 421, 16, torch.bfloat16
    blocks = -(-tokens // block_size)
    cache = ops.empty_cache(2 * blocks + 1, 1, kv_heads, block_size, head_dim, dtype, "cuda")[:, 0]
    k, v = (torch.randn(2 * tokens, kv_heads, head_dim, device="cuda").to(dtype) for _ in range(2))
    tables = (torch.randperm(2 * blocks, device="cuda").int() + 1).view(2, blocks)
    places = torch.arange(tokens, device="cuda")
    slots = torch.cat([table.long()[places // block_size] * block_size + places % block_size for table in tables])
    ops.write_kv(k, v, cache, slots, block_size)
    q = torch.randn(tokens, heads, head_dim, device="cuda").to(dtype)

    def attend(queries, contexts, rows):
        """Attention of `queries[i]` rows up to `contexts[i]` tokens of sequence `rows[i]`."""
        starts = torch.tensor([0, *queries]).cumsum(0).int().cuda()
        lens = torch.tensor(contexts).int().cuda()
        mine = torch.cat([q[end - count : end] for count, end in zip(queries, contexts, strict=True)])
        plan = AttentionPlan(
            sequences=len(rows), tokens=len(mine), chunks=len(rows), heads=heads, kv_heads=kv_heads, head_dim=head_dim,
            max_queries=max(queries), sliding_window=window, uniform=True,
        )  # fmt: skip
        plan.update(lens, starts)
        return ops.paged_attention(
            mine, cache, tables[rows], lens, starts, torch.empty_like(mine), 0.3, block_size, window, plan=plan
        )

    whole = attend([tokens], [tokens], [0])
    cuts = [1, 2, 15, 40, 200, 340, 420, 421]
    for begin, end in zip([0, *cuts], cuts, strict=False):
        assert torch.equal(attend([end - begin], [end], [0]), whole[begin:end]), (begin, end)
    each = list(range(1, tokens + 1, 7))
    beside = attend([1] * len(each) + [33], [*each, 333], [0] * len(each) + [1])
    assert torch.equal(beside[: len(each)], whole[[end - 1 for end in each]])
    nothing = attend([1, 1], [0 + 1, tokens], [0, 0])
    assert torch.equal(nothing, whole[[0, tokens - 1]])
