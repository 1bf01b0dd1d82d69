"""A decode step's attention in one launch on a GPU: the same bits, in the output and in the cache, as one by one."""

import pytest
import torch

from octavo_kernels import ops
from octavo_kernels.plan import AttentionPlan
from octavo_kernels.product import Product

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

HALF = [torch.bfloat16, torch.float16]
BLOCK = 16
CONTEXTS = [
    [1], [16, 17], [129, 0, 1, 15, 16, 17, 300], [512], [513, 511, 1], [1024, 1025, 40], [4100], [9000, 3, 512, 0],
]  # fmt: skip


class Step:
    """A ragged batch over permuted blocks, NaN wherever nothing was written; the last token of each sequence is new."""

    def __init__(self, contexts, heads, kv_heads, head_dim, dtype, window=0):
        torch.manual_seed(sum(contexts) + heads)
        count, most = len(contexts), max(-(-c // BLOCK) for c in contexts)
        used = sum(-(-c // BLOCK) for c in contexts)
        order = iter((torch.randperm(used) + 1).tolist())
        self.cache = ops.empty_cache(used + 1, 2, kv_heads, BLOCK, head_dim, dtype, "cuda").fill_(float("nan"))
        tables = torch.zeros(count, most + 3, dtype=torch.int32)
        for s, context in enumerate(contexts):
            for b in range(-(-context // BLOCK)):
                tables[s, b] = next(order)
        slots = [
            int(tables[s, (c - 1) // BLOCK]) * BLOCK + (c - 1) % BLOCK if c else -1 for s, c in enumerate(contexts)
        ]
        old = [int(tables[s, i // BLOCK]) * BLOCK + i % BLOCK for s, c in enumerate(contexts) for i in range(c - 1)]
        if old:
            k, v = (torch.randn(len(old), kv_heads, head_dim, device="cuda").to(dtype) for _ in range(2))
            ops.write_kv(k, v, self.cache[:, 1], torch.tensor(old, device="cuda"), BLOCK)
        self.qkv = torch.randn(count, (heads + 2 * kv_heads) * head_dim, device="cuda").to(dtype)
        self.slots = torch.tensor(slots, device="cuda")
        self.positions = torch.tensor([max(c - 1, 0) for c in contexts], device="cuda")
        self.tables = tables.cuda()
        self.lens = torch.tensor(contexts, dtype=torch.int32, device="cuda")
        self.start = torch.arange(count + 1, dtype=torch.int32, device="cuda")
        self.shape, self.dtype, self.window = (heads, kv_heads, head_dim), dtype, window
        self.plan = AttentionPlan(
            sequences=count, tokens=count, chunks=sum(max(1, -(-c // 512)) for c in contexts), heads=heads,
            kv_heads=kv_heads, head_dim=head_dim, max_queries=1, sliding_window=window,
        )  # fmt: skip
        self.plan.update(self.lens, self.start)

    def buffers(self):
        heads, _, head_dim = self.shape
        return (torch.full((len(self.lens), heads, head_dim), 7.0, dtype=self.dtype, device="cuda") for _ in range(2))

    def apart(self, cos_sin, scale, softcap, sinks, **rope):
        cache, (q, out) = self.cache.clone(), self.buffers()
        ops.rope_write_kv(self.qkv, q, cache[:, 1], self.slots, self.positions, cos_sin, block_size=BLOCK, **rope)
        ops.paged_attention(
            q, cache[:, 1], self.tables, self.lens, self.start, out, scale, BLOCK, self.window, softcap, sinks,
            plan=self.plan,
        )  # fmt: skip
        return out, cache

    def together(self, cos_sin, scale, softcap, sinks, **rope):
        cache, (q, out) = self.cache.clone(), self.buffers()
        ops.rope_attention(
            self.qkv, q, cache[:, 1], self.slots, self.positions, cos_sin, self.tables, self.lens, self.start, out,
            scale, block_size=BLOCK, sliding_window=self.window, softcap=softcap, sinks=sinks, plan=self.plan, **rope,
        )  # fmt: skip
        assert (q == 7).all(), "rotated queries were stored: that was not one launch"
        return out, cache


def assert_same(step, **arguments):
    out, cache = step.apart(**arguments)
    fused, fused_cache = step.together(**arguments)
    assert torch.equal(fused, out)
    assert out.isfinite().all()
    assert torch.equal(fused_cache.view(torch.int16), cache.view(torch.int16))
    again, _ = step.together(**arguments)
    assert torch.equal(again, out)


def table(head_dim, rotary=None):
    angles = torch.rand(9001, (rotary or head_dim) // 2, device="cuda") * 6
    return torch.cat((angles.cos(), angles.sin()), 1)


@pytest.mark.parametrize("contexts", CONTEXTS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(16, 8, 128), (32, 8, 128), (9, 3, 64), (4, 4, 256)])
def test_the_same_bits_as_one_by_one(contexts, heads, kv_heads, head_dim):
    step = Step(contexts, heads, kv_heads, head_dim, torch.bfloat16)
    norms = {name: (torch.rand(head_dim, device="cuda") + 0.5).bfloat16() for name in ("q_norm", "k_norm")}
    for rope in ({}, {**norms, "norm_offset": 0.5, "eps": 1e-5}):
        assert_same(step, cos_sin=table(head_dim), scale=head_dim**-0.5, softcap=0.0, sinks=None, **rope)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("contexts", [[129, 0, 1, 17], [1025, 600]], ids=str)
@pytest.mark.parametrize("window", [0, 100, 700])
@pytest.mark.parametrize("softcap", [0.0, 30.0])
def test_windows_caps_and_sinks(dtype, contexts, window, softcap):
    step = Step(contexts, 16, 4, 128, dtype, window)
    sinks = torch.randn(16, device="cuda")
    for cos_sin in (table(128), table(128, 64), None):
        assert_same(step, cos_sin=cos_sin, scale=0.1, softcap=softcap, sinks=sinks)


def test_more_items_than_blocks():
    step = Step([2000 + 31 * i for i in range(30)], 16, 8, 128, torch.bfloat16)
    assert_same(step, cos_sin=table(128), scale=0.1, softcap=0.0, sinks=None)


def test_more_chunks_than_blocks():
    """So many that decoding in three launches merges runs of them."""
    assert_same(
        Step([9000] * 8 + [5000] * 8, 64, 16, 128, torch.bfloat16),
        cos_sin=table(128),
        scale=0.1,
        softcap=0.0,
        sinks=None,
    )


def test_many_sequences_take_the_road_of_three_launches():
    step = Step([40 + i for i in range(100)], 16, 8, 128, torch.bfloat16)
    arguments = {"cos_sin": table(128), "scale": 0.1, "softcap": 0.0, "sinks": None}
    out, cache = step.apart(**arguments)
    cache_too, (q, fused) = step.cache.clone(), step.buffers()
    ops.rope_attention(
        step.qkv, q, cache_too[:, 1], step.slots, step.positions, arguments["cos_sin"], step.tables, step.lens,
        step.start, fused, 0.1, plan=step.plan,
    )  # fmt: skip
    assert torch.equal(fused, out)
    assert torch.equal(cache_too.view(torch.int16), cache.view(torch.int16))


def test_in_a_graph_behind_the_product_that_it_reads():
    """The launch begins before the projection is there, and the product behind it before the attention is."""
    step = Step([700, 1, 600], 16, 8, 128, torch.bfloat16)
    x = torch.randn(3, 1024, device="cuda").bfloat16()
    weight = (torch.randn(4096, 1024, device="cuda") / 32).bfloat16()
    out_weight = (torch.randn(1024, 2048, device="cuda") / 45).bfloat16()
    cos_sin, hidden, results = table(128), torch.empty_like(x), {}

    def layers(settle):
        hidden.copy_(x)
        for _ in range(6):
            ops.linear(Product(hidden, weight, out=step.qkv))
            settle()
            q, out = step.buffers()
            settle()
            ops.rope_attention(
                step.qkv, q, step.cache[:, 1], step.slots, step.positions, cos_sin, step.tables, step.lens, step.start,
                out, 0.1, plan=step.plan,
            )  # fmt: skip
            settle()
            ops.linear(Product(out.flatten(1), out_weight, out=hidden, residual=hidden))
            settle()

    layers(torch.cuda.synchronize)
    results["alone"] = hidden.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers(lambda: None)
    for _ in range(20):
        graph.replay()
        assert torch.equal(hidden, results["alone"])
    assert hidden.isfinite().all()
