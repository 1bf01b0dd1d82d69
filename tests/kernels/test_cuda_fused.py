"""Cache writes, rotary embedding, norms, activations and block copies on a GPU, against float64 and the CPU module."""

import pytest
import torch

from octavo_kernels import cuda, ops, reference
from octavo_kernels.ops import Addend

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HALF = [torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


def assert_close(got, expected, dtype):
    torch.testing.assert_close(
        got.cpu().double(), expected.cpu().double(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


def read_cache(layer, slots, heads, head_dim, block_size):
    """K and V of slots, read as a model would: attention of a query over one key gives that key's value."""
    dtype, count = layer.dtype, len(slots)
    value = torch.empty(count, heads, head_dim, dtype=dtype, device="cuda")
    for i, slot in enumerate(slots.tolist()):  # a table that makes the slot's token the last of its own context
        offset = slot % block_size
        ops.paged_attention(
            torch.zeros(1, heads, head_dim, dtype=dtype, device="cuda"), layer,
            torch.tensor([[slot // block_size]], dtype=torch.int32, device="cuda"),
            torch.tensor([offset + 1], dtype=torch.int32, device="cuda"),
            torch.tensor([0, 1], dtype=torch.int32, device="cuda"), value[i : i + 1], 1.0, block_size,
            sliding_window=1,
        )  # fmt: skip
    return value


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("head_dim", cuda.TENSOR_CORE_HEAD_DIMS)
@pytest.mark.parametrize("block_size", [16, 64])
def test_written_values_come_back_bit_for_bit(dtype, head_dim, block_size):
    cache = ops.empty_cache(5, 2, 3, block_size, head_dim, dtype, "cuda").fill_(float("nan"))
    slots = torch.tensor([block_size, 4 * block_size + 15, -1, 2 * block_size + 7], device="cuda")
    k = torch.randn(4, 3, head_dim, dtype=dtype, device="cuda")
    v = torch.randn(4, 3, head_dim, dtype=dtype, device="cuda")
    ops.write_kv(k, v, cache[:, 1], slots, block_size)
    kept = torch.tensor([0, 1, 3])
    assert torch.equal(read_cache(cache[:, 1], slots[kept], 3, head_dim, block_size), v[kept])
    assert int((~cache.isnan()).sum()) == 2 * 3 * 3 * head_dim  # and nothing else was written


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "rotary"), [(32, 32), (64, 64), (64, 16), (96, 96), (96, 24), (128, 128), (128, 64), (256, 64)]
)
def test_rope_write(dtype, norm, head_dim, rotary):
    """q against float64; K through scores: rotated q and k must give the reference's dot products."""
    tokens, heads, kv_heads, block_size = 37, 6, 2, 16
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim).to(dtype)
    positions = torch.randint(0, 500, (tokens,))
    angles = torch.rand(500, rotary // 2) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    q_norm, k_norm = (torch.rand(head_dim).to(dtype) + 0.5 for _ in range(2))
    slots = torch.randperm(3 * block_size)[:tokens] + block_size
    cache = ops.empty_cache(4, 1, kv_heads, block_size, head_dim, dtype, "cuda").fill_(float("nan"))
    q_out = torch.empty(tokens, heads, head_dim, dtype=dtype, device="cuda")
    norms = {"q_norm": q_norm.cuda(), "k_norm": k_norm.cuda()} if norm else {}
    ops.rope_write_kv(
        qkv.cuda(), q_out, cache[:, 0], slots.cuda(), positions.cuda(), cos_sin.cuda(), **norms, eps=1e-5,
        block_size=block_size, norm_offset=0.25,
    )  # fmt: skip

    q, k, v = qkv.double().view(tokens, -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    if norm:
        q = reference.rms_norm(q, q_norm.double(), 1e-5, 0.25)
        k = reference.rms_norm(k, k_norm.double(), 1e-5, 0.25)
    q, k = (reference.rope(x, positions, cos_sin.double()) for x in (q, k))
    assert_close(q_out, q, dtype)
    out = read_cache(cache[:, 0], slots.cuda(), kv_heads, head_dim, block_size)
    assert torch.equal(out.cpu().double(), v)
    # K in its place: the rows written raw must leave the very same bytes.
    expected = ops.empty_cache(4, 1, kv_heads, block_size, head_dim, dtype, "cuda").fill_(float("nan"))
    ops.write_kv(k.to(dtype).cuda(), v.to(dtype).cuda(), expected[:, 0], slots.cuda(), block_size)
    torch.testing.assert_close(
        cache.float(), expected.float(), equal_nan=True, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("cells", [None, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary", "norm"),
    [
        (32, 8, 128, 128, True), (40, 40, 128, 128, False), (16, 8, 128, 64, True), (9, 3, 64, 64, False),
        (5, 1, 64, 0, True), (8, 4, 256, 64, True), (6, 2, 96, 96, True), (6, 2, 32, 32, False),
    ],
)  # fmt: skip
def test_many_tokens_are_written_as_few_are(cells, heads, kv_heads, head_dim, rotary, norm):
    if cells and head_dim not in (64, 128, 256):
        cells = None
    tokens, block_size = 9001, 16
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim, device="cuda").to(torch.bfloat16)
    slots = torch.randperm(tokens + 16, device="cuda")[:tokens]
    slots[torch.randint(tokens, (50,))] = -1
    positions = torch.randint(0, 5000, (tokens,), device="cuda")
    cos_sin = torch.randn(5000, rotary, device="cuda") if rotary else None
    weights = {
        name: torch.randn(head_dim, device="cuda").to(torch.bfloat16) for name in ("q_norm", "k_norm") if norm
    }  # fmt: skip

    def write(step):
        cache = ops.empty_cache(tokens // 16 + 2, 2, kv_heads, block_size, head_dim, cells or torch.bfloat16, "cuda")
        cache.view(torch.uint8).zero_()
        q = torch.zeros(tokens, heads, head_dim, dtype=torch.bfloat16, device="cuda")
        for i in range(0, tokens, step):
            part = slice(i, i + step)
            ops.rope_write_kv(qkv[part], q[part], cache[:, 1], slots[part], positions[part], cos_sin, **weights)
        return q, cache.view(torch.uint8)

    few, many = write(500), write(tokens)
    inside = qkv.view(tokens, -1, head_dim)[:, :heads]
    assert torch.equal(few[0], many[0])
    assert torch.equal(few[1], many[1])
    assert int((few[1] != 0).sum()) > tokens * kv_heads * head_dim
    cache = ops.empty_cache(tokens // 16 + 2, 1, kv_heads, block_size, head_dim, cells or torch.bfloat16, "cuda")
    ops.rope_write_kv(qkv, inside, cache[:, 0], slots, positions, cos_sin, **weights)
    assert torch.equal(inside, few[0])


def test_rope_in_place_and_padding():
    qkv = torch.randn(5, (4 + 2) * 64, dtype=torch.float16, device="cuda")
    cos_sin = torch.randn(9, 64, device="cuda")
    positions = torch.arange(5, device="cuda")
    slots = torch.full((5,), -1, device="cuda")
    cache = ops.empty_cache(2, 1, 1, 16, 64, torch.float16, "cuda").fill_(7.0)
    apart = torch.empty(5, 4, 64, dtype=torch.float16, device="cuda")
    ops.rope_write_kv(qkv, apart, cache[:, 0], slots, positions, cos_sin)
    ops.rope_write_kv(qkv, qkv.view(5, 6, 64)[:, :4], cache[:, 0], slots, positions, cos_sin)
    assert torch.equal(qkv.view(5, 6, 64)[:, :4], apart)
    assert torch.equal(cache, torch.full_like(cache, 7.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 200, 1024, 4096, 8192, 14336, 20480])
@pytest.mark.parametrize("with_residual", [False, True])
def test_norms(dtype, width, with_residual):
    if dtype is torch.float32:
        width = min(width, 16384)  # the widest row of a block
    x, residual = (torch.randn(5, width).to(dtype) for _ in range(2))
    weight, bias = torch.randn(width).to(dtype), torch.randn(width).to(dtype)
    total = (x.float() + residual.float()).to(dtype) if with_residual else x
    for expected, call in (
        (reference.rms_norm(total.double(), weight.double(), 1e-5, 1.0),
         lambda r: ops.rms_norm(x.cuda(), weight.cuda(), 1e-5, residual=r, offset=1.0)),
        (reference.layer_norm(total.double(), weight.double(), bias.double(), 1e-5),
         lambda r: ops.layer_norm(x.cuda(), weight.cuda(), bias.cuda(), 1e-5, residual=r)),
    ):  # fmt: skip
        summed = residual.cuda() if with_residual else None
        torch.testing.assert_close(
            call(summed).cpu().double(), expected, atol=3 * TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )
        if summed is not None:
            assert torch.equal(summed.cpu(), total)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [200, 1024, 4096, 5120, 8192, 14336])
def test_norms_of_many_rows_are_those_of_few(dtype, width):
    rows = 2**22 // width + 3 if dtype is torch.float32 else 2**23 // width + 3  # fill the chip several times
    x, residual = (torch.randn(rows, width, device="cuda").to(dtype) for _ in range(2))
    weight, bias = (torch.randn(width, device="cuda").to(dtype) for _ in range(2))
    for norm in (
        lambda part, r: ops.rms_norm(part, weight, 1e-5, residual=r, offset=1.0),
        lambda part, r: ops.layer_norm(part, weight, bias, 1e-5, residual=r),
    ):
        for adds in (False, True):
            summed = [residual.clone() if adds else None for _ in range(2)]
            few = torch.cat([
                norm(x[i : i + 7], summed[0][i : i + 7] if adds else None) for i in range(0, rows, 7)
            ])  # fmt: skip
            many = norm(x, summed[1])
            assert torch.equal(few, many)
            assert not adds or torch.equal(*summed)
    inside = x.clone()
    ops.rms_norm(inside, weight, 1e-5, out=inside)
    assert torch.equal(inside, ops.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("width", [64, 14336])
def test_activations(dtype, kind, width):
    x = (torch.randn(7, 2 * width) * 3).to(dtype)
    assert_close(ops.act_and_mul(x.cuda(), kind), reference.act_and_mul(x.double(), kind), dtype)
    assert_close(ops.act(x.cuda(), kind), reference.act(x.double(), kind), dtype)


@pytest.mark.parametrize("kind", ["sigmoid", "softplus"])
@pytest.mark.parametrize("rows", [0, 1, 33, 3000])
def test_gates_of_heads(rows, kind):
    """A gate of each head, and one of each value, whose logits are columns of a wider product."""
    activation = {"sigmoid": torch.sigmoid, "softplus": torch.nn.functional.softplus}[kind]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for width in (1, 256):
            x = torch.randn(rows, 16, 256, device="cuda").to(dtype)
            logits = (torch.randn(rows, 16 * width + 64, device="cuda") * 4).to(dtype)[:, 64:]
            wanted = x.double() * activation(logits.double()).view(rows, 16, width)
            ops.gate_heads(x, logits, kind)
            assert_close(x, wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [1, 4])
def test_norms_of_heads(dtype, heads):
    """Heads of keys become values beside them, or stay where they are."""
    qkv = torch.randn(33, 3 * heads, 512, device="cuda").to(dtype)
    norm, (query, keys, values) = ops.RmsNorm(torch.randn(512).to(dtype).cuda(), 1e-5), qkv.split(heads, dim=1)
    wanted, untouched = reference.rms_norm(keys.cpu().double(), norm.weight.cpu().double(), 1e-5), query.clone()
    for out in (values, keys):
        assert_close(ops.norm_heads(keys, norm, out), wanted, dtype)
    assert torch.equal(query, untouched)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 2816, 5376, 16384])
@pytest.mark.parametrize("rows", [1, 300])
def test_one_launch_between_sublayers_has_the_bits_of_several(dtype, width, rows):
    """Launches as Gemma 4's mixture, Gemma 3 and Granite need them."""
    hidden, first, second = torch.randn(3, rows, width, device="cuda").to(dtype)
    norms = [ops.RmsNorm(torch.randn(width, device="cuda").to(dtype), 1e-5, 1.0) for _ in range(4)]
    scalar = torch.randn(1, device="cuda").to(dtype)

    def normed(x, norm):
        return ops.rms_norm(x, norm.weight, norm.eps, offset=norm.offset)

    delta = normed(normed(first, norms[0]) + normed(second, norms[1]), norms[2])
    for wanted, addends, more in (
        (
            (hidden + delta) * scalar,
            [Addend(first, norms[0]), Addend(second, norms[1])],
            {"post": norms[2], "scalar": scalar},
        ),
        (hidden + normed(first, norms[2]), [Addend(first)], {"post": norms[2]}),
        (hidden + first * 0.22, [Addend(first)], {"factor": 0.22}),
    ):
        found = hidden.clone()
        out = ops.add_norms(found, addends, norm=norms[3], **more)
        assert torch.equal(found, wanted)
        assert torch.equal(out, normed(wanted, norms[3]))
        found = hidden.clone()
        assert ops.add_norms(found, addends, **more) is None
        assert torch.equal(found, wanted)


def test_copy_blocks():
    cache = torch.randn(9, 3, 2, 2, 16 * 64, device="cuda").to(torch.bfloat16)
    expected = cache.clone()
    for source, target in ((1, 5), (1, 6), (2, 7)):
        expected[target] = expected[source]
    ops.copy_blocks(cache, torch.tensor([[1, 5], [1, 6], [2, 7]], device="cuda"))
    assert torch.equal(cache, expected)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="no GPU kernel for these types and sizes"):
        ops.rms_norm(torch.zeros(2, 16, device="cuda").bfloat16()[:, :12], torch.zeros(12, device="cuda").bfloat16(),
                     out=torch.zeros(2, 16, device="cuda").bfloat16()[:, :12])  # fmt: skip
    with pytest.raises(ValueError, match=r"^weight is on cpu, but x is on cuda"):
        ops.rms_norm(torch.zeros(2, 16, device="cuda"), torch.zeros(16))
    with pytest.raises(ValueError, match=r"^x must start at a multiple of 16 bytes"):
        ops.rms_norm(torch.zeros(17, device="cuda")[1:].view(1, 16), torch.zeros(16, device="cuda"))
