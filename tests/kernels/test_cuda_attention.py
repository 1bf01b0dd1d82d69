"""Paged attention on a GPU: against float64, bit for bit where bits are promised, and in graphs."""

import pytest
import torch

from octavo_kernels import cuda, ops, reference
from octavo_kernels.attention.plan import (
    AttentionPlan,
    chunk_count,
    chunk_tokens,
    few_queries,
    only_prompts,
    split_queries,
)

from .conftest import assert_alone_as_together, assert_replays_follow_lengths, assert_tail_as_in_whole

pytestmark = pytest.mark.gpu

DTYPES = [torch.bfloat16, torch.float16]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
MIXED = [(1, 1), (1, 15), (1, 16), (1, 17), (1, 64), (1, 511), (1, 512), (1, 513), (1, 3000), (0, 20), (1, 0),
         (3, 600), (5, 5), (33, 33), (17, 48), (200, 1100), (129, 129)]  # fmt: skip


def check(batch, scale=0.125, sinks=None, **options):
    out = batch.attend(scale, **options, **({} if sinks is None else {"sinks": sinks.cuda()})).cpu()
    for i in range(len(batch.keys)):
        rows = batch.rows(i)
        expected = reference.attention(
            batch.q[rows].cpu().double(), batch.keys[i].double(), batch.values[i].double(), scale, sinks=sinks,
            **options,
        )  # fmt: skip
        tolerance = TOLERANCE[batch.q.dtype]
        torch.testing.assert_close(out[rows].double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", cuda.TENSOR_CORE_HEAD_DIMS)
def test_decode_and_prefill_in_one_call(gpu_batch, dtype, head_dim):
    check(gpu_batch(MIXED, dtype=dtype, head_dim=head_dim))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_prompts_of_many_tiles(gpu_batch, dtype, head_dim):
    """More tiles than there are multiprocessors, of every remainder that matters to 128 or 192 rows by 128 keys."""
    lengths = [(n, c) for n in (31, 48, 64, 96, 97, 127, 128, 129, 500) for c in (n, n + 1, n + 127, n + 128, 1024)]
    check(gpu_batch(lengths, heads=16, kv_heads=8, dtype=dtype, head_dim=head_dim))


@pytest.mark.beyond_plain
@pytest.mark.parametrize(
    ("lengths", "alone"),
    [([(40, 900), (700, 700), (65, 2000)], True), ([(40, 900), (16, 700)], False), ([(40, 900), (64, 1200)], False)],
)
def test_prompts_without_decodes(gpu_batch, lengths, alone):
    """Few queries are decodes, those after a long context are split, and the rest spares what both of them need."""
    queries, contexts = zip(*lengths, strict=True)
    assert only_prompts(contexts, queries, 2) is alone
    batch = gpu_batch(lengths, heads=16, kv_heads=8, head_dim=128, dtype=torch.bfloat16)
    plan = AttentionPlan(
        sequences=len(lengths), tokens=sum(queries), chunks=chunk_count(contexts, queries, 2), heads=16,
        kv_heads=8, head_dim=128, max_queries=max(queries), shared_prefixes=True,
    )  # fmt: skip
    for decodes in (not alone, True):
        plan.update(batch.context_lens, batch.query_start, decodes=decodes)
        assert torch.equal(batch.attend(plan=plan), batch.attend())


@pytest.mark.beyond_plain
@pytest.mark.parametrize("window", [0, 100])
def test_few_queries_without_prompts(gpu_batch, window):
    """Sequences computed as decodes spare the memory that longer queries and groups need."""
    most = few_queries(4, windowed=window > 0)
    lengths = [(1, 700), (4, 4), (3, 2000), (most, 600), (most, most)]
    queries, contexts = zip(*lengths, strict=True)
    batch = gpu_batch(lengths, heads=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16)
    plan = AttentionPlan(
        sequences=len(lengths), tokens=sum(queries), chunks=chunk_count(contexts, queries, 4), heads=32,
        kv_heads=8, head_dim=128, max_queries=128, sliding_window=window, shared_prefixes=True,
    )  # fmt: skip
    groups, shared = torch.zeros_like(batch.context_lens), torch.full_like(batch.context_lens, 512)
    for prompts in (False, True):
        plan.update(batch.context_lens, batch.query_start, *(() if prompts else (groups, shared)), prompts=prompts)
        assert torch.equal(batch.attend(plan=plan, sliding_window=window), batch.attend(sliding_window=window))


@pytest.mark.parametrize("window", [1, 100, 128, 300])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_sliding_window_over_many_tiles(gpu_batch, window, head_dim):
    check(gpu_batch([(700, 1500), (129, 400), (64, 1000)], heads=8, head_dim=head_dim), sliding_window=window)


@pytest.mark.beyond_plain
@pytest.mark.parametrize("head_dim", [96, 128])
def test_layers_share_a_plan(gpu_batch, head_dim):
    """The counter from which blocks draw their work is as it was when a call ends."""
    batch = gpu_batch([(1, 3000), (300, 900), (9, 1500), (700, 700)], heads=16, kv_heads=8, head_dim=head_dim)
    chunks = chunk_count([3000, 900, 1500, 700], [1, 300, 9, 700], 2)
    plan = AttentionPlan(
        sequences=4, tokens=1010, chunks=chunks, heads=16, kv_heads=8, head_dim=head_dim, max_queries=700,
        shared_prefixes=True,
    )  # fmt: skip
    plan.update(batch.context_lens, batch.query_start)
    expected = batch.attend()
    for _ in range(4):
        assert torch.equal(batch.attend(plan=plan), expected)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (6, 2), (7, 1), (8, 1), (9, 1), (16, 1), (40, 1)])
def test_head_groups(gpu_batch, heads, kv_heads):
    check(gpu_batch([(1, 130), (4, 20), (1, 1030), (50, 200)], heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_block_sizes(gpu_batch, block_size):
    check(gpu_batch([(1, 1), (1, 129), (1, 900), (40, 200)], block_size=block_size))


@pytest.mark.parametrize("window", [1, 7, 16, 64, 100, 512, 5000])
def test_sliding_window(gpu_batch, window):
    check(gpu_batch(MIXED), sliding_window=window)


def test_blocks_before_the_window_are_not_read(gpu_batch):
    batch = gpu_batch([(2, 1000), (100, 1000)])
    expected = batch.attend(sliding_window=50)
    batch.tables[0, : (1000 - 2 - 50) // 16] = -(2**31)
    batch.tables[1, : (1000 - 100 - 50) // 64 * 4] = -(2**31)
    assert torch.equal(batch.attend(sliding_window=50), expected)


@pytest.mark.parametrize("softcap", [2.0, 50.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_softcap(gpu_batch, head_dim, softcap):
    check(gpu_batch(MIXED, head_dim=head_dim), scale=0.5, softcap=softcap)


@pytest.mark.parametrize("window", [0, 20])
def test_sinks(gpu_batch, window):
    check(gpu_batch(MIXED), sinks=torch.tensor([-3.0, 0.0, 2.0, 30.0]), sliding_window=window)


def test_large_scores_do_not_overflow(gpu_batch):
    check(gpu_batch([(1, 300), (40, 80)], dtype=torch.float16), scale=30.0)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_weights_outgrow_the_score_that_they_are_relative_to(gpu_batch, dtype, head_dim, scale):
    """From tile to tile of a prompt some scores rise by more than float16, or float, has room for. Bits are the same
    wherever a prompt is cut, though its rows lie elsewhere in tiles then."""
    batch = gpu_batch([(900, 1000), (300, 700)], heads=8, dtype=dtype, head_dim=head_dim)
    check(batch, scale=scale)
    whole = batch.attend(scale)
    for last in (64, 127, 129, 200):
        tail = batch.alone(0, last_queries=last)
        tail.query_start = tail.query_start.cuda()
        assert torch.equal(tail.attend(scale), whole[900 - last : 900])


def test_long_context(gpu_batch):
    check(gpu_batch([(1, 100_000), (70, 20_000)], head_dim=128, heads=8))


def test_strided_queries(gpu_batch):
    batch = gpu_batch([(3, 40), (1, 90), (30, 30)])
    expected = batch.attend()
    wide = torch.full((34, 12, 64), float("nan"), dtype=batch.q.dtype, device="cuda")
    wide[:, 4:8] = batch.q
    batch.q = wide[:, 4:8]
    assert torch.equal(batch.attend(), expected)


def test_cpu_and_gpu_agree(gpu_batch, make_batch):
    gpu, cpu = gpu_batch(MIXED), make_batch(MIXED, dtype=torch.bfloat16)
    torch.testing.assert_close(gpu.attend().cpu(), cpu.attend(), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (4, 4), (16, 1)])
def test_a_result_does_not_depend_on_the_batch(gpu_batch, heads, kv_heads):
    """Decodes and prompts, run to run, and each alone against in a batch of 64."""
    generator = torch.Generator().manual_seed(1)
    lengths = [(1, int(n)) for n in torch.randint(1, 4000, (56,), generator=generator)]
    lengths += [(int(n), int(n) + 37) for n in torch.randint(20, 300, (8,), generator=generator)]
    batch = gpu_batch(lengths, heads=heads, kv_heads=kv_heads, head_dim=128)
    assert_alone_as_together(batch, every=3)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(64, 16, 128), (112, 16, 128), (160, 16, 128), (64, 16, 64), (160, 16, 64), (64, 16, 96), (64, 16, 256)],
)
@pytest.mark.parametrize("max_queries", [1, 48])
def test_many_long_sequences_are_as_each_alone(heads, kv_heads, head_dim, max_queries):
    """So many chunks that thread blocks merge runs of them, which none does for one sequence."""
    lengths = torch.tensor([2048, 2049, 4095, 4096, 700, 9000, 513, 10240, 2047, 1, 3000, 2560] * 4, dtype=torch.int32)
    cache = ops.empty_cache(2000, 1, kv_heads, 16, head_dim, torch.bfloat16, "cuda").normal_()
    tables = torch.randint(1, 2000, (48, 640), dtype=torch.int32, device="cuda")
    q = torch.randn(48, heads, head_dim).bfloat16().cuda()

    def attend(rows: slice) -> torch.Tensor:
        count, contexts = len(lengths[rows]), lengths[rows].cuda()
        starts = torch.arange(count + 1, dtype=torch.int32, device="cuda")
        out = torch.full_like(q[rows], float("nan"))
        chunks = chunk_count(lengths[rows], [1] * count, heads // kv_heads)
        plan = AttentionPlan(
            sequences=count, tokens=count, chunks=chunks, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
            max_queries=max_queries,
        )  # fmt: skip
        plan.update(contexts, starts)
        return ops.paged_attention(q[rows], cache[:, 0], tables[rows], contexts, starts, out, 0.125, 16, plan=plan)

    together = attend(slice(48))
    assert together.isfinite().all()
    assert torch.equal(attend(slice(48)), together)
    for i in range(0, 48, 5):
        assert torch.equal(attend(slice(i, i + 1)), together[i : i + 1]), lengths[i]


SHORT = [0, 1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 300, 513]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "queries"),
    [(32, 8, 128, 1), (8, 8, 128, 1), (64, 8, 128, 1), (16, 8, 64, 3), (24, 8, 96, 1), (8, 8, 32, 8)],
)
@pytest.mark.parametrize("options", [{}, {"sliding_window": 40}, {"softcap": 5.0}], ids=str)
def test_many_short_sequences_are_as_each_alone(gpu_batch, heads, kv_heads, head_dim, queries, options):
    """So many that warps take them one by one, where blocks would share each."""
    lengths = [(min(queries, 1 + n % queries), max(n, queries) if n else 0) for n in SHORT * 16]
    batch = gpu_batch(lengths, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    together = batch.attend(**options)
    assert torch.equal(batch.attend(**options), together)
    for i in range(len(SHORT)):
        alone = batch.alone(i)
        alone.query_start = alone.query_start.cuda()
        assert torch.equal(alone.attend(**options), together[batch.rows(i)]), lengths[i]
    if queries == 1 and not options:
        check(batch, sinks=torch.linspace(-3.0, 3.0, heads))


def test_finished_history_is_read_early_and_nothing_else(gpu_batch):
    """The kernel before attention writes the queries' own tokens, where there was nothing yet."""
    lengths = [1, 15, 16, 17, 64, 65, 513, 3000, 0] * 8
    batch = gpu_batch([(1, n) for n in lengths], heads=16, kv_heads=8, head_dim=128)
    plan = AttentionPlan(
        sequences=72, tokens=72, chunks=sum(chunk_count([n], [1], 2) for n in lengths), heads=16, kv_heads=8,
        head_dim=128, max_queries=1,
    )  # fmt: skip
    plan.update(batch.context_lens, batch.query_start)
    expected = batch.attend(plan=plan)
    last = [(i, n - 1) for i, n in enumerate(lengths) if n]
    slots = torch.stack([batch.tables[i, p // 16].long() * 16 + p % 16 for i, p in last])
    k, v = (torch.stack([of[i][p] for i, p in last]).cuda() for of in (batch.keys, batch.values))
    nothing = torch.full_like(k, float("nan"))
    for _ in range(20):
        ops.write_kv(nothing, nothing, batch.layer, slots)
        ops.write_kv(k, v, batch.layer, slots)
        assert torch.equal(batch.attend(plan=plan, history_ready=True), expected)


def test_a_prompt_cut_into_chunks_gives_the_same_bits(gpu_batch):
    assert_tail_as_in_whole(gpu_batch([(300, 700)]), last_queries=100)


def few_queries_after_a_long_context(heads, kv_heads):
    """The most queries that are split along their keys, the least tokens before them, and sequences on either side."""
    most, limit = split_queries(heads // kv_heads), chunk_tokens() * 2
    lengths = [
        (5, 2000),
        (most, limit + most),
        (most - 1, 3000),
        (most + 1, 3000),
        (7, limit + 6),
        (6, 4096),
        (17, 1536),
    ]
    return most, limit, lengths


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (4, 4), (16, 1), (10, 2), (9, 1)])
def test_few_queries_after_a_long_context_are_split(gpu_batch, heads, kv_heads):
    _, _, lengths = few_queries_after_a_long_context(heads, kv_heads)
    check(gpu_batch([(n, c) for n, c in lengths if n > 0], heads=heads, kv_heads=kv_heads, head_dim=128))


@pytest.mark.beyond_plain
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (4, 4), (16, 1), (10, 2), (9, 1)])
def test_few_queries_have_the_bits_of_decodes(gpu_batch, heads, kv_heads):
    """One token after the other; plain kernels add up the keys of a single query in another order."""
    most, limit, lengths = few_queries_after_a_long_context(heads, kv_heads)
    few = few_queries(heads // kv_heads, windowed=False)
    lengths += [(few, few), (few, 700), (few + 1, 700)]
    batch = gpu_batch([(n, c) for n, c in lengths if n > 0], heads=heads, kv_heads=kv_heads, head_dim=128)
    together = batch.attend()
    for i, (queries, context) in enumerate(lengths):
        if queries > most or (queries > few and context - queries < limit):
            continue
        for place in {0, queries // 2, queries - 1}:
            one = batch.alone(i, last_queries=queries - place)
            one.q, one.context_lens = one.q[:1], one.context_lens - (queries - 1 - place)
            one.query_start = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
            assert torch.equal(one.attend(), together[batch.rows(i)][place : place + 1]), (queries, context, place)


def test_graph_replay_with_changed_lengths(gpu_batch):
    """One graph, captured once, serves every batch that fits: lengths, tables and padding change between replays."""
    lengths = [(1, 2000), (1, 700), (1, 513), (1, 64), (1, 5), (1, 3000)]
    batch = gpu_batch(lengths, heads=8, kv_heads=2, head_dim=128)
    assert_replays_follow_lengths(batch, chunks=6 * 6)


def test_wrong_arguments(gpu_batch):
    batch = gpu_batch([(1, 20)])
    with pytest.raises(ValueError, match=r"^block_size must be a power of two on CUDA"):
        ops.empty_cache(2, 1, 1, 48, 64, torch.float16, "cuda")
    with pytest.raises(ValueError, match=r"^head_dim must be"):
        ops.empty_cache(2, 1, 1, 16, 520, torch.float16, "cuda")
    with pytest.raises(ValueError, match=r"^block_tables is on cpu"):
        ops.paged_attention(
            batch.q, batch.layer, batch.tables.cpu(), batch.context_lens, batch.query_start, batch.q.clone(), 1.0
        )
    shifted = torch.zeros(4 * 64 + 1, dtype=batch.q.dtype, device="cuda")[1:].view(1, 4, 64)
    with pytest.raises(ValueError, match=r"^q must start at a multiple of 16 bytes"):
        ops.paged_attention(
            shifted, batch.layer, batch.tables, batch.context_lens, batch.query_start, batch.q.clone(), 1.0
        )
    plan = AttentionPlan(sequences=1, tokens=1, chunks=1, heads=4, kv_heads=2, head_dim=64, max_queries=1)
    with pytest.raises(ValueError, match=r"^plan was made for"):
        ops.paged_attention(
            batch.q, batch.layer, batch.tables, batch.context_lens, batch.query_start, batch.q.clone(), 1.0,
            sliding_window=5, plan=plan,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("heads", "kv_heads", "max_queries"), [(32, 8, 1), (32, 8, 8192), (40, 40, 512), (40, 40, 1), (64, 2, 64)]
)
@pytest.mark.parametrize("uniform", [False, True])
def test_partial_bytes_are_nearly_all_of_a_plan(heads, kv_heads, max_queries, uniform):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    shape = {"chunks": 2000, "heads": heads, "kv_heads": kv_heads, "head_dim": 128, "max_queries": max_queries}
    plan = AttentionPlan(sequences=64, tokens=8192, uniform=uniform, **shape)
    taken = torch.cuda.memory_allocated() - before
    told = AttentionPlan.partial_bytes(uniform=uniform, **shape)
    assert plan.decodes == (told > 0)
    assert told <= taken <= told + (2 << 20)
