import pytest
import torch

from octavo_kernels import ops, reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EIGHT_BITS = [torch.int8, torch.float8_e4m3fn]
BLOCK = 16


def read_back(layer, slot, head_dim):
    """K and V of one slot, by attending to that key alone: V is the output, K the score against unit queries."""
    block, offset = divmod(slot, BLOCK)
    cells = layer[block].reshape(2, layer.shape[2], -1)
    k = cells[0].reshape(-1, head_dim, BLOCK)[:, :, offset]
    v = cells[1].reshape(-1, BLOCK, head_dim)[:, offset]
    return k, v


def table(max_pos, rotary_dim):
    angles = torch.arange(max_pos)[:, None] / 10000 ** (torch.arange(0, rotary_dim, 2) / rotary_dim)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write_kv_fills_its_slots_and_nothing_else(level, dtype):
    cache = ops.empty_cache(4, 2, 3, BLOCK, 40, dtype)
    cache.fill_(7.0)
    k, v = torch.randn(4, 3, 40).to(dtype), torch.randn(4, 3, 40).to(dtype)
    slots = torch.tensor([17, -1, 63, 32])
    ops.write_kv(k, v, cache[:, 1], slots)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            got_k, got_v = read_back(cache[:, 1], slot, 40)
            assert torch.equal(got_k, k[row])
            assert torch.equal(got_v, v[row])
    assert (cache[:, 0] == 7.0).all()
    assert (cache[:, 1] != 7.0).sum() == 3 * 2 * 3 * 40


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rotary_dim", [None, 2, 24, 48, 80])
@pytest.mark.parametrize("norm", [False, True])
def test_rope_write_kv(level, dtype, rotary_dim, norm):
    heads, kv_heads, dim, tokens = 6, 2, 80, 5
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    slots, positions = torch.tensor([3, 20, -1, 16, 47]), torch.tensor([0, 9, 5, 77, 99])
    cos_sin = None if rotary_dim is None else table(100, rotary_dim)
    q_norm, k_norm = (torch.randn(dim).to(dtype), torch.randn(dim).to(dtype)) if norm else (None, None)
    cache = ops.empty_cache(3, 1, kv_heads, BLOCK, dim, dtype)
    cache.zero_()
    q = torch.empty(tokens, heads, dim, dtype=dtype)
    ops.rope_write_kv(qkv, q, cache[:, 0], slots, positions, cos_sin, q_norm, k_norm, 1e-5, BLOCK, norm_offset=1.0)

    expected_q, expected_k, v = qkv.double().reshape(tokens, -1, dim).split([heads, kv_heads, kv_heads], dim=1)
    if norm:
        expected_q = reference.rms_norm(expected_q, q_norm.double(), 1e-5, 1.0)
        expected_k = reference.rms_norm(expected_k, k_norm.double(), 1e-5, 1.0)
    if cos_sin is not None:
        expected_q = reference.rope(expected_q, positions, cos_sin.double())
        expected_k = reference.rope(expected_k, positions, cos_sin.double())
    close = {"atol": 1e-6, "rtol": 1e-6} if dtype is torch.float32 else {"atol": 1e-2, "rtol": 1e-2}
    torch.testing.assert_close(q.double(), expected_q, **close)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            got_k, got_v = read_back(cache[:, 0], slot, dim)
            torch.testing.assert_close(got_k.double(), expected_k[row], **close)
            assert torch.equal(got_v.double(), v[row])


def read_back_eight_bits(layer, slots, head_dim):
    """(cells as bytes, scales) of K, then of V, of some slots."""
    raw = layer.view(torch.uint8)
    cells, scales = raw.split([BLOCK * head_dim, BLOCK * 4], dim=-1)
    scales = scales.contiguous().view(torch.float32).unflatten(-1, (BLOCK, 1))
    k = cells[:, 0].unflatten(-1, (head_dim, BLOCK)).transpose(-1, -2)
    v = cells[:, 1].unflatten(-1, (BLOCK, head_dim))
    blocks, offsets = slots // BLOCK, slots % BLOCK
    return [x[blocks, :, offsets] for x in (k, scales[:, 0], v, scales[:, 1])]


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cells", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("head_dim", [8, 40, 64, 256])
def test_eight_bits_of_every_token_and_head(level, dtype, cells, head_dim):
    """Over ten orders of magnitude, with zeros, all as the reference rounds them; nothing else is touched."""
    cache = ops.empty_cache(6, 2, 3, BLOCK, head_dim, cells)
    cache.view(torch.uint8).fill_(0xA5)
    size = torch.logspace(-6, 4, 50)[:, None, None]
    k, v = ((torch.randn(50, 3, head_dim) * size).to(dtype) for _ in range(2))
    k[3, 1], v[9] = 0.0, 0.0
    slots = torch.randperm(6 * BLOCK)[:50]
    slots[7] = -1
    ops.write_kv(k, v, cache[:, 1], slots)
    kept = slots >= 0
    read = read_back_eight_bits(cache[:, 1], slots[kept], head_dim)
    for x, (got, scales) in ((k, read[:2]), (v, read[2:])):
        expected, expected_scales = reference.quantise(x[kept].float(), cells)
        assert torch.equal(got, expected.view(torch.uint8))
        assert torch.equal(scales, expected_scales)
    assert (cache[:, 0].view(torch.uint8) == 0xA5).all()
    unused = torch.ones(6 * BLOCK, dtype=torch.bool)
    unused[slots[kept]] = False
    for left in read_back_eight_bits(cache[:, 1], unused.nonzero()[:, 0], head_dim):
        assert (left.contiguous().view(torch.uint8) == 0xA5).all()


@pytest.mark.parametrize("cells", EIGHT_BITS, ids=str)
def test_rotated_and_normalised_keys_in_eight_bits(level, cells):
    """The rotated key is rounded in float32, so that no other rounding comes before."""
    qkv, norm = torch.randn(5, 10 * 64).to(torch.bfloat16), torch.randn(64).to(torch.bfloat16)
    slots, positions = torch.tensor([3, 20, 40, 16, 47]), torch.tensor([0, 9, 5, 77, 99])
    q = torch.empty(5, 6, 64, dtype=torch.bfloat16)
    exact = ops.empty_cache(3, 1, 2, BLOCK, 64, torch.float32)
    ops.rope_write_kv(qkv.float(), q.float(), exact[:, 0], slots, positions, table(100, 48), norm.float(), norm.float())
    cache = ops.empty_cache(3, 1, 2, BLOCK, 64, cells)
    ops.rope_write_kv(qkv, q, cache[:, 0], slots, positions, table(100, 48), norm, norm)
    read = read_back_eight_bits(cache[:, 0], slots, 64)
    for x, (got, scales) in zip((0, 1), (read[:2], read[2:]), strict=True):
        values = torch.stack([read_back(exact[:, 0], int(slot), 64)[x] for slot in slots])
        expected, expected_scales = reference.quantise(values, cells)
        assert torch.equal(got, expected.view(torch.uint8))
        assert torch.equal(scales, expected_scales)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cells", EIGHT_BITS, ids=str)
def test_every_code_is_read_exactly(level, dtype, cells):
    """Four tokens of 64 values, each attended to alone: the output is V itself."""
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(cells).float()
    codes[expected.isnan()], expected[expected.isnan()] = 0, 0.0  # e4m3 has two NaNs, which are never written
    cache = ops.empty_cache(5, 1, 1, BLOCK, 64, cells)
    raw = cache[:, 0].view(torch.uint8)
    raw.fill_(0)
    raw[1:, 1, 0, :64] = codes.reshape(4, 64)
    one = torch.tensor([1.0]).view(torch.uint8)
    raw[1:, 1, 0, BLOCK * 64 : BLOCK * 64 + 4] = one
    q, tables = torch.ones(4, 2, 64, dtype=dtype), torch.arange(1, 5, dtype=torch.int32)[:, None]
    lengths, starts = torch.ones(4, dtype=torch.int32), torch.arange(5, dtype=torch.int32)
    out = ops.paged_attention(q, cache[:, 0], tables, lengths, starts, torch.empty_like(q), 1.0)
    assert torch.equal(out[:, 0].float().flatten(), expected)


@pytest.mark.parametrize("cells", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_broken_token_is_seen_by_what_attends_to_it_alone(level, make_batch, cells, value):
    batch = make_batch([(4, 40), (4, 40)], cells=cells, head_dim=64)
    k = torch.zeros(1, 2, 64)
    k[0, 0, 5] = value
    slot = batch.tables[1, 38 // BLOCK].long() * BLOCK + 38 % BLOCK
    ops.write_kv(k, torch.zeros(1, 2, 64), batch.layer, slot[None])
    broken = batch.attend().isnan().flatten(2).any(-1)
    assert broken.nonzero().tolist() == [[6, 0], [6, 1], [7, 0], [7, 1]]


def test_rope_agrees_with_transformers(level):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    heads, dim, tokens = 4, 32, 6
    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=heads * dim, num_attention_heads=heads))
    positions = torch.tensor([0, 1, 5, 100, 1000, 2047])
    qkv = torch.randn(tokens, 3 * heads * dim)
    x = qkv.reshape(1, tokens, 3 * heads, dim).transpose(1, 2)
    cos, sin = rotary(x, positions[None])
    expected, _ = apply_rotary_pos_emb(x[:, :heads], x[:, heads : 2 * heads], cos, sin)
    cos_all, sin_all = rotary(x, torch.arange(2048)[None])
    cos_sin = torch.cat((cos_all[0, :, : dim // 2], sin_all[0, :, : dim // 2]), dim=1)
    q = torch.empty(tokens, heads, dim)
    cache = ops.empty_cache(1, 1, heads, BLOCK, dim, torch.float32)
    ops.rope_write_kv(qkv, q, cache[:, 0], torch.arange(tokens), positions, cos_sin)
    torch.testing.assert_close(q, expected[0].transpose(0, 1), atol=1e-6, rtol=1e-6)


def test_copy_blocks_copies_all_layers_and_nothing_else():
    cache = torch.randn(6, 3, 2, 2, BLOCK * 8)
    before = cache.clone()
    ops.copy_blocks(cache, torch.tensor([[1, 4], [1, 2], [3, 5]]))
    assert torch.equal(cache, before[[0, 1, 1, 3, 1, 3]])
    ops.copy_blocks(cache, torch.empty(0, 2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [*DTYPES, *EIGHT_BITS], ids=str)
def test_swap_blocks_copies_whole_blocks_and_nothing_else(dtype):
    source, target = (ops.empty_cache(blocks, 3, 2, BLOCK, 8, dtype) for blocks in (4, 6))
    source.view(torch.uint8).random_(0, 100)
    target.view(torch.uint8).fill_(101)
    ops.swap_blocks(source, target, torch.tensor([[3, 1], [1, 5], [3, 2]]))
    for block, origin in {1: 3, 5: 1, 2: 3}.items():
        assert torch.equal(target[block].view(torch.uint8), source[origin].view(torch.uint8))
    assert all((target[block].view(torch.uint8) == 101).all() for block in (0, 3, 4))
    ops.swap_blocks(source, target, torch.empty(0, 2, dtype=torch.int64))
    with pytest.raises(IndexError):
        ops.swap_blocks(source, target, torch.tensor([[4, 0]]))


def test_blocks_without_bytes_may_be_copied():
    """A model whose layers keep a state alone has such."""
    cache = torch.empty(4, 0)
    ops.copy_blocks(cache, torch.tensor([[1, 2]]))
    ops.swap_blocks(cache, torch.empty(2, 0), torch.tensor([[3, 1]]))
