"""Paged attention on a GPU where the cache is not what tensor cores take: float32, eight bits, any head dim."""

import pytest
import torch

from octavo_kernels import cuda, ops, reference

from .conftest import as_read, assert_alone_as_together, assert_replays_follow_lengths, assert_tail_as_in_whole

pytestmark = pytest.mark.gpu

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
I8, F8 = torch.int8, torch.float8_e4m3fn
TOLERANCE = {F32: 2e-5, BF16: 1e-2, F16: 2e-3}
MIXED = [(1, 1), (1, 15), (1, 16), (1, 17), (1, 64), (1, 511), (1, 512), (1, 513), (1, 3000), (0, 20), (1, 0),
         (3, 600), (5, 5), (33, 33), (17, 48), (200, 1100), (129, 129)]  # fmt: skip
KINDS = [(F32, None), (F32, I8), (F32, F8), (BF16, I8), (BF16, F8), (F16, I8), (F16, F8)]
NAMES = [f"{str(d)[6:]}-{str(c or d)[6:]}" for d, c in KINDS]


def check(batch, scale=0.125, sinks=None, **options):
    """On the tensor cores, prompts (more than 16 query rows) round what they read to the type of the data."""
    out = batch.attend(scale, **options, **({} if sinks is None else {"sinks": sinks.cuda()})).cpu()
    for i in range(len(batch.keys)):
        rows = batch.rows(i)
        q, k, v = batch.q[rows].cpu().double(), batch.keys[i], batch.values[i]
        is_rounded = cuda.has_tensor_cores() and q.shape[2] in (64, 128, 256)
        if is_rounded and len(q) * q.shape[1] // k.shape[1] > 16:
            k, v = k.to(batch.q.dtype), v.to(batch.q.dtype)
        expected = reference.attention(q, k.double(), v.double(), scale, sinks=sinks, **options)
        tolerance = TOLERANCE[batch.q.dtype]
        torch.testing.assert_close(out[rows].double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
@pytest.mark.parametrize("head_dim", [16, 24, 32, 64, 80, 96, 128, 192, 256, 512])
def test_decode_and_prefill_in_one_call(gpu_batch, dtype, cells, head_dim):
    check(gpu_batch(MIXED, dtype=dtype, cells=cells, head_dim=head_dim))


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("head_dim", [8, 40, 80, 112, 192, 384])
def test_head_dims_that_tensor_cores_do_not_take(gpu_batch, dtype, head_dim):
    check(gpu_batch(MIXED, dtype=dtype, head_dim=head_dim))


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (6, 2), (7, 1), (8, 1), (9, 1), (16, 1), (40, 1)])
def test_head_groups(gpu_batch, dtype, cells, heads, kv_heads):
    lengths = [(1, 130), (4, 20), (1, 1030), (50, 200)]
    check(gpu_batch(lengths, dtype=dtype, cells=cells, heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_block_sizes(gpu_batch, dtype, cells, block_size):
    check(gpu_batch([(1, 1), (1, 129), (1, 900), (40, 200)], dtype=dtype, cells=cells, block_size=block_size))


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
@pytest.mark.parametrize("window", [1, 7, 64, 100, 512, 5000])
def test_sliding_window(gpu_batch, dtype, cells, window):
    check(gpu_batch(MIXED, dtype=dtype, cells=cells), sliding_window=window)


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
def test_blocks_before_the_window_are_not_read(gpu_batch, dtype, cells):
    batch = gpu_batch([(2, 1000), (100, 1000)], dtype=dtype, cells=cells)
    expected = batch.attend(sliding_window=50)
    batch.tables[0, : (1000 - 2 - 50) // 16] = -(2**31)
    batch.tables[1, : (1000 - 100 - 50) // 64 * 4] = -(2**31)
    assert torch.equal(batch.attend(sliding_window=50), expected)


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
def test_softcap_and_sinks(gpu_batch, dtype, cells):
    batch = gpu_batch(MIXED, dtype=dtype, cells=cells)
    check(batch, scale=0.5, softcap=20.0)
    check(batch, sinks=torch.tensor([-3.0, 0.0, 2.0, 30.0]), sliding_window=20)


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
def test_long_context(gpu_batch, dtype, cells):
    check(gpu_batch([(1, 100_000), (70, 5_000)], dtype=dtype, cells=cells, head_dim=128, heads=8))


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
def test_cpu_and_gpu_agree(gpu_batch, make_batch, dtype, cells):
    gpu, cpu = (make(MIXED, dtype=dtype, cells=cells) for make in (gpu_batch, make_batch))
    torch.testing.assert_close(gpu.attend().cpu(), cpu.attend(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (4, 4), (16, 1)])
def test_a_result_does_not_depend_on_the_batch(gpu_batch, dtype, cells, heads, kv_heads):
    """Decodes and prompts, run to run, and each alone against in a batch of 64."""
    generator = torch.Generator().manual_seed(1)
    lengths = [(1, int(n)) for n in torch.randint(1, 2000, (56,), generator=generator)]
    lengths += [(int(n), int(n) + 37) for n in torch.randint(20, 300, (8,), generator=generator)]
    batch = gpu_batch(lengths, dtype=dtype, cells=cells, heads=heads, kv_heads=kv_heads, head_dim=128)
    assert_alone_as_together(batch, every=5)


@pytest.mark.parametrize(("dtype", "cells"), [(BF16, I8), (F16, F8)], ids=str)
def test_many_long_sequences_are_as_each_alone(gpu_batch, dtype, cells):
    """So many chunks that the plan lists runs of them, which kernels over a type of 16 bits would merge."""
    lengths = [(1, n) for n in [2048, 700, 5000, 2047, 3000] * 10]
    batch = gpu_batch(lengths, dtype=dtype, cells=cells, heads=64, kv_heads=16, head_dim=64)
    assert_alone_as_together(batch, every=7)


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
def test_a_prompt_cut_into_chunks_gives_the_same_bits(gpu_batch, dtype, cells):
    assert_tail_as_in_whole(gpu_batch([(300, 700)], dtype=dtype, cells=cells), last_queries=100)


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
def test_graph_replay_with_changed_lengths(gpu_batch, dtype, cells):
    lengths = [(1, 2000), (1, 700), (1, 513), (1, 64), (1, 5), (1, 3000)]
    batch = gpu_batch(lengths, dtype=dtype, cells=cells, heads=8, kv_heads=2, head_dim=128)
    assert_replays_follow_lengths(batch, chunks=6 * 6)


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
def test_a_value_that_is_not_finite_is_seen(gpu_batch, dtype, cells):
    batch = gpu_batch([(1, 40), (1, 40)], dtype=dtype, cells=cells)
    slot = batch.tables[0, 1].long()[None] * 16 + 3
    k = torch.full((1, 2, 64), float("inf"), dtype=dtype, device="cuda")
    ops.write_kv(torch.zeros_like(k), k, batch.layer, slot)
    out = batch.attend()
    assert not out[0].isfinite().any()
    assert out[1].isfinite().all()


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "rotary"), [(24, 24), (64, 64), (64, 16), (80, 20), (128, 128), (256, 64), (512, 512)]
)
def test_rope_write(dtype, cells, norm, head_dim, rotary):
    """Results of a query over one token at a time: K by its scores against unit queries, V as it is."""
    tokens, heads, kv_heads = 17, 6, 2
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim).to(dtype)
    positions = torch.randint(0, 500, (tokens,))
    angles = torch.rand(500, rotary // 2) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    q_norm, k_norm = (torch.rand(head_dim).to(dtype) + 0.5 for _ in range(2))
    norms = {"q_norm": q_norm, "k_norm": k_norm} if norm else {}
    slots = torch.randperm(3 * 16)[:tokens] + 16
    answers = []
    for device in ("cpu", "cuda"):
        cache = ops.empty_cache(4, 1, kv_heads, 16, head_dim, cells or dtype, device)
        cache.view(torch.uint8).fill_(0xFF)
        q_out = torch.empty(tokens, heads, head_dim, dtype=dtype, device=device)
        ops.rope_write_kv(
            qkv.to(device), q_out, cache[:, 0], slots.to(device), positions.to(device), cos_sin.to(device),
            **{name: weight.to(device) for name, weight in norms.items()}, eps=1e-5, norm_offset=0.25,
        )  # fmt: skip
        tables = (slots // 16).int()[:, None].to(device)
        out = torch.empty(tokens, heads, head_dim, dtype=dtype, device=device)
        # Every block is a sequence's only one and its last slot the query's own: sixteen keys, of which some are NaN.
        lens, starts = (slots % 16 + 1).int(), torch.arange(tokens + 1, dtype=torch.int32)
        ops.paged_attention(q_out, cache[:, 0], tables, lens.to(device), starts.to(device), out, 1.0, sliding_window=1)
        answers.append((q_out.cpu(), out.cpu()))
    torch.testing.assert_close(answers[1], answers[0], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(("dtype", "cells"), [*KINDS, (BF16, None), (F16, None)], ids=[*NAMES, "bf16", "f16"])
@pytest.mark.parametrize(("heads", "rotary"), [(6, 128), (9, 32)])
def test_many_tokens_are_written_as_few_are(dtype, cells, heads, rotary):
    """Threads take several heads each where there are many tokens: not a bit may differ."""
    tokens, kv_heads, head_dim = 4000, 2, 128
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype, device="cuda")
    angles = torch.rand(tokens, rotary // 2, device="cuda") * 6
    cos_sin, norm = torch.cat((angles.cos(), angles.sin()), 1), torch.rand(head_dim, device="cuda").to(dtype)
    slots, positions = torch.randperm(tokens, device="cuda"), torch.arange(tokens, device="cuda")
    slots[::7] = -1
    answers = []
    for step in (tokens, 100):
        cache = ops.empty_cache(tokens // 16, 1, kv_heads, 16, head_dim, cells or dtype, "cuda")
        cache.view(torch.uint8).fill_(0xFF)
        q_out = torch.empty(tokens, heads, head_dim, dtype=dtype, device="cuda")
        for part in positions.split(step):
            few = slice(int(part[0]), int(part[-1]) + 1)
            ops.rope_write_kv(qkv[few], q_out[few], cache[:, 0], slots[few], part, cos_sin, norm, norm)
        answers.append((q_out.view(torch.uint8), cache.view(torch.uint8)))
    assert torch.equal(answers[0][0], answers[1][0])
    assert torch.equal(answers[0][1], answers[1][1])


@pytest.mark.parametrize(("dtype", "cells"), KINDS, ids=NAMES)
def test_scores_of_rotated_keys(dtype, cells):
    """Attention over rotated, normalised keys is that of float64 over what the cache makes of them."""
    tokens, heads, kv_heads, head_dim = 300, 6, 2, 128
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim).to(dtype)
    angles = torch.rand(tokens, head_dim // 2) * 6
    cos_sin, positions = torch.cat((angles.cos(), angles.sin()), 1), torch.arange(tokens)
    norm = (torch.rand(head_dim) + 0.5).to(dtype)
    cache = ops.empty_cache(20, 1, kv_heads, 16, head_dim, cells or dtype, "cuda")
    q_out = torch.empty(tokens, heads, head_dim, dtype=dtype, device="cuda")
    ops.rope_write_kv(
        qkv.cuda(),
        q_out,
        cache[:, 0],
        positions.cuda() + 16,
        positions.cuda(),
        cos_sin.cuda(),
        norm.cuda(),
        norm.cuda(),
    )
    out = torch.empty_like(q_out)
    table = torch.arange(1, 20, dtype=torch.int32, device="cuda")[None]
    ops.paged_attention(
        q_out, cache[:, 0], table, torch.tensor([tokens], dtype=torch.int32, device="cuda"),
        torch.tensor([0, tokens], dtype=torch.int32, device="cuda"), out, head_dim**-0.5,
    )  # fmt: skip
    _, k, v = qkv.double().view(tokens, -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    k = reference.rope(reference.rms_norm(k, norm.double(), 1e-6), positions, cos_sin.double())
    if cells is not None:
        k, v = as_read(k, cells), as_read(v, cells)
    expected = reference.attention(q_out.cpu().double(), k, v, head_dim**-0.5)
    # A cell of fp8 next to the middle between two codes may go either way.
    tolerance = max(TOLERANCE[dtype], 2e-3 if cells is not None else 0.0)
    torch.testing.assert_close(out.cpu().double(), expected, atol=tolerance, rtol=tolerance)
