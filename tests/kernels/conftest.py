"""Every test that takes `level` runs on all instruction sets of this machine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from octavo_kernels import _cpu, ops, reference
from octavo_kernels.attention.plan import AttentionPlan

BLOCK = 16


@pytest.fixture(scope="session", autouse=True)
def torch_alone() -> Iterator[None]:
    """Torch's threads would compete with those under test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def same_data() -> None:
    """Equal data in every run, so that a failure fails again: also the one in a hundred whose eight bits lie next to
    the middle between two codes."""
    torch.manual_seed(0)


@pytest.fixture(params=_cpu.levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _cpu.level()
    _cpu.set_level(request.param)
    yield request.param
    _cpu.set_level(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads after a test that changes it."""
    before = ops.num_threads()
    yield
    ops.set_num_threads(before)


@dataclass
class Batch:
    """Sequences in one paged cache: blocks shuffled, everything unused poisoned with NaN. `keys` and `values` are what
    the cache says they are: in eight bits not what was written, which is `written`, pairs of K and V."""

    q: Tensor
    cache: Tensor
    tables: Tensor
    context_lens: Tensor
    query_start: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    block_size: int
    written: list[tuple[Tensor, Tensor]]

    @property
    def layer(self) -> Tensor:
        return self.cache[:, 1]

    def attend(self, scale: float = 0.125, **options: object) -> Tensor:
        out = torch.full_like(self.q, float("nan"))
        ops.paged_attention(
            self.q, self.layer, self.tables, self.context_lens, self.query_start, out, scale, self.block_size, **options
        )
        return out

    def rows(self, sequence: int) -> slice:
        return slice(int(self.query_start[sequence]), int(self.query_start[sequence + 1]))

    def alone(self, sequence: int, last_queries: int | None = None) -> "Batch":
        """The same cache, one sequence, perhaps only its last queries."""
        q = self.q[self.rows(sequence)]
        q = q if last_queries is None else q[len(q) - last_queries :]
        one = slice(sequence, sequence + 1)
        return Batch(
            q, self.cache, self.tables[one], self.context_lens[one], torch.tensor([0, len(q)], dtype=torch.int32),
            self.keys[one], self.values[one], self.block_size, self.written[one],
        )  # fmt: skip


def as_read(x: Tensor, cells: torch.dtype) -> Tensor:
    """float64: what becomes of K or V in a cache in eight bits."""
    quantised, scales = reference.quantise(x.float(), cells)
    return quantised.double() * scales.double()


@pytest.fixture
def make_batch():
    def make(
        lengths: list[tuple[int, int]],  # (queries, context) of each sequence
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
        block_size: int = BLOCK,
        seed: int = 0,
        cells: torch.dtype | None = None,  # of the cache; None: as `dtype`
    ) -> Batch:
        generator = torch.Generator().manual_seed(seed)

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        needed = [-(-length // block_size) for _, length in lengths]
        blocks = 1 + sum(needed) + 2
        cache = ops.empty_cache(blocks, 2, kv_heads, block_size, head_dim, cells or dtype)
        cache.view(torch.uint8).fill_(0xFF)  # NaN in every type of float
        order = (torch.randperm(blocks - 1, generator=generator) + 1).to(torch.int32)
        tables = torch.full((len(lengths), max([*needed, 1])), -(2**31), dtype=torch.int32)  # reading one would crash
        keys, values, written, start = [], [], [], 0
        for row, ((_, length), count) in enumerate(zip(lengths, needed, strict=True)):
            tables[row, :count] = order[start : start + count]
            start += count
            position = torch.arange(length)
            slots = tables[row, position // block_size].long() * block_size + position % block_size
            k, v = randn(length, kv_heads, head_dim), randn(length, kv_heads, head_dim)
            ops.write_kv(k, v, cache[:, 1], slots, block_size)
            written.append((k, v))
            keys.append(k if cells is None else as_read(k, cells))
            values.append(v if cells is None else as_read(v, cells))
        queries = torch.tensor([0] + [n for n, _ in lengths]).cumsum(0).to(torch.int32)
        return Batch(
            randn(int(queries[-1]), heads, head_dim),
            cache,
            tables,
            torch.tensor([length for _, length in lengths], dtype=torch.int32),
            queries,
            keys,
            values,
            block_size,
            written,
        )

    return make


@pytest.fixture
def gpu_batch(make_batch):
    """A batch, of bfloat16 unless told otherwise, whose cache was written by the GPU, everything else moved there."""

    def make(lengths: list[tuple[int, int]], **shape: object) -> Batch:
        batch = make_batch(lengths, **{"dtype": torch.bfloat16, **shape})
        blocks, layers, _, kv_heads, _ = batch.cache.shape
        head_dim = batch.q.shape[-1]
        cache = ops.empty_cache(blocks, layers, kv_heads, batch.block_size, head_dim, batch.cache.dtype, "cuda")
        cache.view(torch.uint8).fill_(0xFF)  # NaN, be it in scales
        for (k, v), table in zip(batch.written, batch.tables, strict=True):
            position = torch.arange(len(k))
            slots = table[position // batch.block_size].long() * batch.block_size + position % batch.block_size
            ops.write_kv(k.cuda(), v.cuda(), cache[:, 1], slots.cuda(), batch.block_size)
        for name in ("q", "tables", "context_lens", "query_start"):
            setattr(batch, name, getattr(batch, name).cuda())
        batch.cache = cache
        return batch

    return make


def assert_alone_as_together(batch: Batch, every: int) -> None:
    """Bits run to run, and of each `every`th sequence alone against in the batch."""
    together = batch.attend()
    assert torch.equal(batch.attend(), together)
    for i in range(0, len(batch.context_lens), every):
        alone = batch.alone(i)
        alone.query_start = alone.query_start.to(batch.q.device)
        assert torch.equal(alone.attend(), together[batch.rows(i)]), int(batch.context_lens[i])


def assert_tail_as_in_whole(batch: Batch, last_queries: int) -> None:
    """Bits of the last queries of a batch of one, alone against after the others."""
    whole = batch.attend()
    tail = batch.alone(0, last_queries=last_queries)
    tail.query_start = tail.query_start.to(batch.q.device)
    assert torch.equal(tail.attend(), whole[-last_queries:])


def assert_replays_follow_lengths(batch: Batch, chunks: int) -> None:
    """One graph of a batch of decodes, captured once, against eager runs: lengths change between replays. `chunks`:
    room in the plan."""
    count, heads, head_dim = batch.q.shape
    plan = AttentionPlan(
        sequences=count, tokens=count, chunks=chunks, heads=heads, kv_heads=batch.cache.shape[3], head_dim=head_dim,
        max_queries=1,
    )  # fmt: skip
    lengths, out = batch.context_lens.cpu(), torch.zeros_like(batch.q)

    def step() -> None:
        plan.update(batch.context_lens, batch.query_start)
        ops.paged_attention(
            batch.q, batch.layer, batch.tables, batch.context_lens, batch.query_start, out, 0.1, plan=plan
        )

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for scale in (1.0, 0.3, 0.01, 0.7, 0.0):
        batch.context_lens.copy_((lengths * scale).int())
        out.fill_(float("nan"))
        graph.replay()
        replayed = out.clone()
        step()
        assert torch.equal(out, replayed)
        assert not out.isnan().any()
    assert torch.equal(out, torch.zeros_like(out))


def assert_a_graph_computes_the_same(chain: Callable[[Callable[[], None]], None], x: Tensor) -> None:
    """Launches that follow each other, each of which may begin before the one before it has ended. `chain(settle)`
    works on `x`, in place, and calls `settle` after every launch."""
    start = torch.randn_like(x)
    x.copy_(start)
    chain(torch.cuda.synchronize)  # cuBLAS, which may take some of them, cannot begin in a graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(lambda: None)
    for _ in range(5):
        x.copy_(start)
        graph.replay()
        replayed = x.clone()
        x.copy_(start)
        chain(torch.cuda.synchronize)
        assert torch.equal(replayed, x)
        start = x.clone().mul_(0.5)
