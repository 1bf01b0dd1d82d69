"""Decoding by groups of sequences that share leading blocks: the same bits as each sequence alone, and right ones."""

import pytest
import torch
from torch import Tensor

from octavo_kernels import cuda, ops, reference
from octavo_kernels.attention.plan import AttentionPlan, chunk_count, chunk_tokens, split_queries

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]


class Grouped:
    """Sequences whose leading blocks are those of their group; everything unused is poisoned with NaN.

    `members`: for each sequence its group (-1: none), context length and number of query tokens.
    """

    def __init__(self, prefixes, members, heads=8, kv_heads=2, head_dim=128, block=16, dtype=torch.bfloat16):
        generator = torch.Generator().manual_seed(0)

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        self.block, self.members, self.prefixes = block, members, prefixes
        needed = [-(-length // block) for _, length, _ in members]
        shared = [length // block for length in prefixes]
        total = 1 + sum(shared) + sum(needed)
        order = iter((torch.randperm(total - 1, generator=generator) + 1).tolist())
        leading = [[next(order) for _ in range(n)] for n in shared]
        heads_of = [(randn(n * block, kv_heads, head_dim), randn(n * block, kv_heads, head_dim)) for n in shared]
        self.cache = ops.empty_cache(total, 2, kv_heads, block, head_dim, dtype, "cuda")
        self.cache.fill_(float("nan"))
        self.tables = torch.full((len(members), max(needed)), -(2**31), dtype=torch.int32)
        self.keys, self.values = [], []
        for row, (group, length, _) in enumerate(members):
            k, v = randn(length, kv_heads, head_dim), randn(length, kv_heads, head_dim)
            mine = [next(order) for _ in range(needed[row])]
            if group >= 0:
                common = min(len(leading[group]), length // block)
                mine[:common] = leading[group][:common]
                k[: common * block], v[: common * block] = (t[: common * block] for t in heads_of[group])
            self.tables[row, : needed[row]] = torch.tensor(mine)
            position = torch.arange(length)
            slots = self.tables[row, position // block].long() * block + position % block
            ops.write_kv(k.cuda(), v.cuda(), self.cache[:, 1], slots.cuda(), block)
            self.keys.append(k)
            self.values.append(v)
        self.tables = self.tables.cuda()
        self.context_lens = torch.tensor([n for _, n, _ in members], dtype=torch.int32, device="cuda")
        self.query_start = torch.tensor([0, *(n for _, _, n in members)]).cumsum(0).int().cuda()
        self.groups = torch.tensor([g for g, _, _ in members], dtype=torch.int32, device="cuda")
        lengths = [*prefixes, *[0] * len(members)][: len(members)]
        self.prefix_lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self.q = randn(int(self.query_start[-1]), heads, head_dim).cuda()
        self.kv_heads = kv_heads

    def plan(self, shared_prefixes: bool) -> AttentionPlan:
        tokens, heads, head_dim = self.q.shape
        _, contexts, queries = zip(*self.members, strict=True)
        chunks = chunk_count(contexts, queries, heads // self.kv_heads)
        return AttentionPlan(
            sequences=len(self.members), tokens=tokens, chunks=chunks, heads=heads, kv_heads=self.kv_heads,
            head_dim=head_dim, max_queries=max(n for _, _, n in self.members), shared_prefixes=shared_prefixes,
        )  # fmt: skip

    def call(self, plan: AttentionPlan, out: Tensor, **options) -> Tensor:
        self.update(plan)
        return self.call_again(plan, out, **options)

    def update(self, plan: AttentionPlan) -> None:
        plan.update(self.context_lens, self.query_start, self.groups, self.prefix_lens)

    def call_again(self, plan: AttentionPlan, out: Tensor, **options) -> Tensor:
        lengths = (self.context_lens, self.query_start)
        return ops.paged_attention(
            self.q, self.cache[:, 1], self.tables, *lengths, out, 0.125, self.block, plan=plan, **options
        )

    def attend(self, shared_prefixes: bool = True, **options) -> Tensor:
        return self.call(self.plan(shared_prefixes), torch.full_like(self.q, float("nan")), **options)

    def check(self, **options) -> None:
        """By groups bit for bit as without, and near the result in float64."""
        plain = self.attend(shared_prefixes=False, **options)
        grouped = self.attend(**options)
        for i, (k, v) in enumerate(zip(self.keys, self.values, strict=True)):
            rows = slice(int(self.query_start[i]), int(self.query_start[i + 1]))
            expected = reference.attention(
                self.q[rows].cpu().double(), k.double(), v.double(), 0.125,
                **{n: x.cpu() if isinstance(x, Tensor) else x for n, x in options.items()},
            )  # fmt: skip
            tolerance = 1e-2 if self.q.dtype == torch.bfloat16 else 2e-3
            torch.testing.assert_close(grouped[rows].cpu().double(), expected, atol=tolerance, rtol=tolerance)
            assert torch.equal(grouped[rows], plain[rows]), f"sequence {i}: {self.members[i]}"


MIXED = [(0, 2100, 1), (-1, 700, 1), (1, 600, 1), (0, 1500, 1), (1, 530, 1), (0, 3000, 1), (-1, 5, 1), (0, 1501, 1),
         (1, 1024, 1), (1, 513, 1), (0, 1, 1), (-1, 0, 1)]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", cuda.TENSOR_CORE_HEAD_DIMS)
@pytest.mark.parametrize("few_rows", [0, 1000])
def test_groups_do_not_change_a_bit(monkeypatch, dtype, head_dim, few_rows):
    """Both ways of computing a group's rows; prefixes of 1500 and 520 tokens are no multiples of a chunk."""
    monkeypatch.setattr(AttentionPlan, "few_rows", few_rows)
    Grouped([1500 // 16 * 16, 520 // 16 * 16], MIXED, head_dim=head_dim, dtype=dtype).check()


@pytest.mark.parametrize("count", [1, 2, 4, 8, 9, 33, 100])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (8, 1), (16, 1)])
def test_group_sizes(count, heads, kv_heads):
    Grouped([1024], [(0, 1030 + i, 1) for i in range(count)], heads=heads, kv_heads=kv_heads).check()


def test_more_tiles_than_multiprocessors():
    batch = Grouped([2048], [(0, 2050 + i, 1) for i in range(33)], heads=64, kv_heads=16, head_dim=64)
    assert torch.equal(batch.attend(), batch.attend(shared_prefixes=False))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_scores_that_rise_far_above_the_first_ones(monkeypatch, head_dim):
    """Maxima must be raised in the middle of a tile, for some of its rows and not for others."""
    monkeypatch.setattr(AttentionPlan, "few_rows", 0)
    batch = Grouped([1536], [(0, 1540 + i, 1) for i in range(50)], head_dim=head_dim)
    batch.q[::2] *= 8
    batch.check()


LONG = (-1, 160_000, 1)  # beside so much few multiprocessors work at tiles, as few as runs of chunks keep busy


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_runs_of_chunks(head_dim, dtype):
    """Four chunks of a prefix are merged before they are written: of two tiles of rows, and of a third one alone."""
    members = [(0, 4620 + i, 1) for i in range(35)] + [LONG]
    batch = Grouped([4608], members, heads=16, kv_heads=2, head_dim=head_dim, dtype=dtype)
    batch.q[::3] *= 8
    batch.check()
    assert merges_runs(batch, 6)
    first = batch.attend()
    assert all(torch.equal(batch.attend(), first) for _ in range(10))


def test_an_odd_number_of_runs():
    members = [(0, 6670 + i, 1) for i in range(35)] + [(-1, 130_000, 1)]
    batch = Grouped([6656], members, heads=16, kv_heads=2)
    batch.check()
    assert merges_runs(batch, 9)


def test_runs_of_several_groups_and_what_does_not_merge():
    members = [(i % 2, 2600 + i, 1 + i % 2) for i in range(80)] + [(-1, 3000, 1), (-1, 2500, 30), (-1, 106_000, 1)]
    batch = Grouped([2560, 2048], members, heads=8, kv_heads=2)
    batch.check()
    assert merges_runs(batch, 5)
    batch.check(softcap=2.0)  # by the kernel that merges nothing


def merges_runs(batch: Grouped, tiles: int) -> bool:
    """True if runs are merged for so many tiles of rows, as on Hopper; elsewhere none are."""
    plan = batch.plan(shared_prefixes=True)
    batch.update(plan)
    return int(plan.header[-1]) == (tiles if torch.cuda.get_device_capability()[0] == 9 else 0)


@pytest.mark.parametrize("block", [32, 128])
def test_block_sizes(block):
    Grouped([1024, 640], [(i % 2, 1100 + 13 * i, 1) for i in range(20)], block=block).check()


def test_several_queries_and_prompts_in_one_call():
    members = [(0, 1100 + i, 1 + i % 4) for i in range(20)] + [(0, 1200, 60), (-1, 90, 90)]
    Grouped([1024], members).check()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(8, 2, 128), (8, 2, 64), (8, 2, 96), (8, 1, 128), (10, 2, 128)]
)
def test_split_queries_beside_groups(heads, kv_heads, head_dim):
    """A sequence whose queries are split reads the chunks that all of them see as a group of its own."""
    members = [(0, 1100 + i, 1 + i % 4) for i in range(10)] + [
        (-1, 3000, 16),
        (0, 1540, 7),
        (-1, 1040, 16),
        (-1, 5000, 9),
    ]
    Grouped([1024], members, heads=heads, kv_heads=kv_heads, head_dim=head_dim).check()
    Grouped([1024], members[-2:], heads=heads, kv_heads=kv_heads, head_dim=head_dim).check()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(8, 8, 128), (4, 4, 64), (6, 2, 128), (16, 1, 96), (8, 4, 256)]
)
def test_split_queries_of_a_group_share_its_tiles(heads, kv_heads, head_dim):
    """Some have chunks of their own behind the prefix that all their queries see, too."""
    most = split_queries(heads // kv_heads)
    members = [(0, 2048 + n, n) for n in (most, most - 1, max(1, most // 2), 2, 1)]
    members += [(0, 4000 + i, 1 + 3 * i % most) for i in range(4)] + [
        (-1, 2500, most),
        (0, 2048, 2),
        (0, 2049 + most, most + 1),
    ]
    batch = Grouped([2048], members, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    batch.check()
    batch.check(sinks=torch.linspace(-3.0, 3.0, heads, device="cuda"))


def test_prompts_behind_a_prefix_are_full_tiles():
    """64 queries of each of 12 sequences: tiles of 128 rows hold those of two, each of which alone would take one."""
    batch = Grouped([2048], [(0, 2048 + 64, 64)] * 12, heads=4, kv_heads=4)
    plan = batch.plan(shared_prefixes=True)
    batch.call(plan, torch.empty_like(batch.q))
    prefix_items = int(plan.header[3])
    assert prefix_items == 6 * 2048 // chunk_tokens()


@pytest.mark.parametrize("few_rows", [0, 1000])
@pytest.mark.parametrize("head_dim", [96, 128])
def test_finished_history_is_read_early_and_nothing_else(monkeypatch, few_rows, head_dim):
    """The kernel before attention writes the queries' own tokens, where there was nothing yet."""
    monkeypatch.setattr(AttentionPlan, "few_rows", few_rows)
    members = [(0, 2049 + 7 * i, 1) for i in range(24)] + [(-1, 700, 1), (-1, 5, 1), (0, 2060, 3)]
    batch = Grouped([2048], members, head_dim=head_dim)
    expected, plan = batch.attend(), batch.plan(shared_prefixes=True)
    batch.update(plan)
    own = [(row, length - 1 - i) for row, (_, length, queries) in enumerate(members) for i in range(queries)]
    slots = torch.stack([batch.tables[row, at // 16].long() * 16 + at % 16 for row, at in own])
    k, v = (torch.stack([of[row][at] for row, at in own]).cuda() for of in (batch.keys, batch.values))
    nothing = torch.full_like(k, float("nan"))
    for _ in range(20):
        ops.write_kv(nothing, nothing, batch.cache[:, 1], slots)
        ops.write_kv(k, v, batch.cache[:, 1], slots)
        assert torch.equal(batch.call_again(plan, torch.zeros_like(batch.q), history_ready=True), expected)


def test_a_beginning_that_the_same_call_writes(monkeypatch):
    """The first of several prompts computes their common beginning, the others read it in the same step."""
    monkeypatch.setattr(AttentionPlan, "few_rows", 0)
    members = [(0, 2112, 2112)] + [(0, 2049 + 7 * i, 1 + i % 3) for i in range(24)]
    batch = Grouped([2048], members)
    expected, plan = batch.attend(), batch.plan(shared_prefixes=True)
    batch.update(plan)
    own = [(row, at) for row, (_, length, queries) in enumerate(members) for at in range(length - queries, length)]
    slots = torch.stack([batch.tables[row, at // 16].long() * 16 + at % 16 for row, at in own])
    k, v = (torch.stack([of[row][at] for row, at in own]).cuda() for of in (batch.keys, batch.values))
    qkv = torch.cat([part.flatten(1) for part in (batch.q, k, v)], dim=1)
    positions = torch.tensor([at for _, at in own], device="cuda")
    nothing = torch.full_like(k, float("nan"))
    for _ in range(20):
        ops.write_kv(nothing, nothing, batch.cache[:, 1], slots)
        out = ops.rope_attention(
            qkv, torch.empty_like(batch.q), batch.cache[:, 1], slots, positions, None, batch.tables,
            batch.context_lens, batch.query_start, torch.zeros_like(batch.q), 0.125, plan=plan,
        )  # fmt: skip
        assert torch.equal(out, expected)


@pytest.mark.parametrize("few_rows", [0, 1000])
@pytest.mark.parametrize("count", [4, 40, 300])
def test_calls_one_after_the_other(monkeypatch, count, few_rows):
    """As the layers of a model: each begins before the one before has ended, and all give the same."""
    monkeypatch.setattr(AttentionPlan, "few_rows", few_rows)
    batch = Grouped([2048], [(0, 2050 + i, 1) for i in range(count)], heads=16, kv_heads=4)
    expected, plan = batch.attend(shared_prefixes=False), batch.plan(shared_prefixes=True)
    outs = [torch.full_like(batch.q, float("nan")) for _ in range(30)]
    batch.update(plan)
    for out in outs:
        batch.call_again(plan, out, history_ready=True)
    assert all(torch.equal(out, expected) for out in outs)


@pytest.mark.parametrize("few_rows", [0, 1000])
def test_softcap_and_sinks(monkeypatch, few_rows):
    monkeypatch.setattr(AttentionPlan, "few_rows", few_rows)
    batch = Grouped([1024], [(0, 1040 + i, 1) for i in range(10)])
    batch.check(softcap=2.0)
    batch.check(sinks=torch.linspace(-3.0, 3.0, 8, device="cuda"))


def test_a_sequence_with_too_few_tokens_is_computed_alone():
    Grouped([2048], [(0, 2049, 1), (0, 2048, 1), (0, 2047, 1), (0, 2050, 3), (0, 2048, 2), (0, 16, 1)]).check()


def test_more_sequences_than_the_plan_has_threads():
    Grouped(
        [512], [(0 if i % 3 else -1, 513 + i % 7, 1) for i in range(1100)], heads=2, kv_heads=1, head_dim=32
    ).check()


def test_graph_replay_with_changed_groups():
    """One graph serves whatever groups there are: they, their prefixes and the lengths change between replays."""
    batch = Grouped([1024, 1536], [(i % 2, 1540 + 31 * i, 1) for i in range(24)])
    plan, out = batch.plan(shared_prefixes=True), torch.zeros_like(batch.q)
    batch.call(plan, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch.call(plan, out)
    lengths, groups, prefix_lens = batch.context_lens.clone(), batch.groups.clone(), batch.prefix_lens.clone()
    for longer, kept, prefix in [(0, 24, 1024), (5, 10, 512), (9, 0, 1024), (2, 3, 0), (1, 24, 1000), (0, 24, 600)]:
        batch.context_lens.copy_(lengths + longer - 9)
        batch.groups.copy_(torch.where(torch.arange(24, device="cuda") < kept, groups, -1))
        batch.prefix_lens.copy_(prefix_lens.clamp(max=prefix))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, batch.attend(shared_prefixes=False))


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (8, 1), (4, 2)])
@pytest.mark.parametrize("few_rows", [0, 16])
def test_groups_of_up_to_sixteen_rows(monkeypatch, heads, kv_heads, few_rows):
    monkeypatch.setattr(AttentionPlan, "few_rows", few_rows)
    for count in range(1, 17 * kv_heads // heads):
        members = [(0, 1030 + i, 1) for i in range(count)] + [(-1, 700, 1)]
        Grouped([1024], members, heads=heads, kv_heads=kv_heads).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", cuda.TENSOR_CORE_HEAD_DIMS)
@pytest.mark.parametrize(("members", "queries"), [(3, 1), (4, 1), (7, 1), (3, 2)])
def test_many_groups_of_few_rows(members, queries, head_dim, dtype):
    """More items than run side by side: two tiles of eight rows share the keys of one, beside sequences alone."""
    batch = [(g, 1500 + 3 * g + i, queries) for g in range(48) for i in range(members)] + [(-1, 700, 1)] * 40
    grouped = Grouped([1040] * 48, batch, heads=16, kv_heads=4, head_dim=head_dim, dtype=dtype)
    grouped.check()
    first = grouped.attend()
    assert all(torch.equal(grouped.attend(), first) for _ in range(5))


def test_groups_of_few_rows_with_a_softcap_and_scores_that_rise():
    grouped = Grouped([1040] * 48, [(g, 1500 + i, 1) for g in range(48) for i in range(4)], heads=16, kv_heads=4)
    grouped.q[::3] *= 8
    grouped.check()
    grouped.check(softcap=2.0)


def test_groups_need_a_cache_of_the_datas_type():
    grouped = Grouped([1024], [(0, 1030, 1), (0, 1031, 1)])
    plan = grouped.plan(shared_prefixes=True)
    cache = ops.empty_cache(len(grouped.cache), 2, grouped.kv_heads, 16, grouped.q.shape[2], torch.int8, "cuda")
    lengths, out = (grouped.context_lens, grouped.query_start), torch.empty_like(grouped.q)
    with pytest.raises(ValueError, match="plan has shared prefixes"):
        ops.paged_attention(grouped.q, cache[:, 1], grouped.tables, *lengths, out, 0.125, 16, plan=plan)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(16, 8, 128), (8, 8, 64)])
def test_many_short_suffixes(heads, kv_heads, head_dim):
    """So many that warps take them one by one, while tiles take the prefix."""
    members = [(0, 1024 + i % 40, 1) for i in range(200)] + [(-1, 1 + i, 1) for i in range(10)]
    batch = Grouped([1024], members, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    batch.check()
    first = batch.attend()
    assert all(torch.equal(batch.attend(), first) for _ in range(5))


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 16), (32, 32), (64, 16)])
def test_many_small_groups_of_short_suffixes(heads, kv_heads):
    """So many short items, those of groups of few rows among them, that warps take them one by one."""
    members = [(i // 4, 512 + 1 + 7 * i % 60, 1) for i in range(128)] + [(-1, 1 + i % 90, 1) for i in range(160)]
    Grouped([512] * 32, members, heads=heads, kv_heads=kv_heads).check()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "count", "prefix"),
    [(16, 8, 200, 512), (9, 3, 280, 512), (128, 8, 26, 2048), (128, 8, 26, 5120)],
)
def test_folds_of_more_rows_than_run_at_once(heads, kv_heads, count, prefix):
    """Folds of few partial results, of several, and of many, with runs among them or not."""
    members = [(0, prefix + 2 + i % 20, 1) for i in range(count)] + [(1, 2100 + i, 1) for i in range(4)]
    members += [(-1, 700 * i + 1, 1) for i in range(9)]
    batch = Grouped([prefix, 2048], members, heads=heads, kv_heads=kv_heads, head_dim=128)
    assert torch.equal(batch.attend(), batch.attend(shared_prefixes=False))


def test_run_to_run():
    batch = Grouped([1024], [(0, 1030 + i, 1) for i in range(64)])
    first = batch.attend()
    assert all(torch.equal(batch.attend(), first) for _ in range(10))


def test_wrong_arguments():
    batch = Grouped([16], [(0, 20, 1)])
    with pytest.raises(ValueError, match=r"^groups must be int32 of shape \[1\]"):
        batch.plan(True).update(batch.context_lens, batch.query_start, batch.groups.long(), batch.prefix_lens)
