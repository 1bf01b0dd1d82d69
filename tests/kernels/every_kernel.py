"""Launches every CUDA kernel on small shapes, for compute-sanitizer to watch: `tests/kernels/sanitize.sh`.

What goes in is copied from the host, so that initcheck sees it written; what comes out starts unwritten. Arguments
name the pieces to run, by default all, and then it fails if the module has an operation that none of them launched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from coded_alone import coded, coded_wide
from exchange_alone import exchange
from experts_alone import coded_experts, experts
from recurrent_alone import recurrent
from step_words import step_message
from torch import Tensor
from w8a8_alone import w8a8_products
from wide_alone import wide_heads

from octavo_kernels import cuda, ops, step
from octavo_kernels.attention.plan import AttentionPlan
from octavo_kernels.cache import pools
from octavo_kernels.exchange.ranks import best_part, draw_part
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products import dense_cuda
from octavo_kernels.products.product import Product
from octavo_kernels.sampling.adjust import Adjustment, adjust, pack

BF16, F16, F32, I32, I64 = torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.int64
BLOCK = 16
HOST = {"chunk_count", "only_prompts", "few_queries", "part_queries", "split_queries"}  # which launch nothing


class Recorder:
    """The module, and which of its operations were launched."""

    def __init__(self, module: object) -> None:
        self._module, self.launched = module, set[str]()

    def __getattr__(self, name: str) -> object:
        value = getattr(self._module, name)
        if callable(value):
            self.launched.add(name)
        return value

    def missing(self) -> set[str]:
        operations = {n for n, value in vars(self._module).items() if callable(value) and not n.startswith("_")}
        return operations - self.launched - HOST


def data(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape).to(dtype).cuda()


def ints(*values: int, dtype: torch.dtype = I32) -> Tensor:
    return torch.tensor(values, dtype=dtype).cuda()


def empty(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


class Sequences:
    """Contexts whose blocks are written, in a shuffled pool; `shared` leading blocks are those of sequence 0."""

    def __init__(
        self,
        lengths: list[int],
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        shared: int = 0,
        cells: torch.dtype | None = None,  # of the cache; None: as `dtype`
    ) -> None:
        counts = [-(-n // BLOCK) for n in lengths]
        order = (torch.randperm(sum(counts)) + 1).int()
        tables = torch.zeros(len(lengths), max(counts), dtype=I32)
        for row, blocks in enumerate(order.split(counts)):
            tables[row, : counts[row]] = blocks
            tables[row, : min(shared, counts[row])] = tables[0, : min(shared, counts[row])]
        self.kv_heads, self.head_dim, self.dtype = kv_heads, head_dim, dtype
        self.cache = ops.empty_cache(sum(counts) + 1, 2, kv_heads, BLOCK, head_dim, cells or dtype, "cuda")
        self.tables, self.lengths = tables.cuda(), ints(*lengths)
        slots = torch.cat([
            tables[row, position // BLOCK].long() * BLOCK + position % BLOCK
            for row, position in enumerate(map(torch.arange, lengths))
        ]).unique()  # fmt: skip
        k, v = (data(len(slots), kv_heads, head_dim, dtype=dtype) for _ in range(2))
        ops.write_kv(k, v, self.cache[:, 1], slots.cuda(), BLOCK)

    def attend(self, queries: list[int], heads: int, groups: tuple[int, ...] = (), shared: int = 0, **options: object
               ) -> None:  # fmt: skip
        q = data(sum(queries), heads, self.head_dim, dtype=self.dtype)
        starts = torch.tensor([0, *queries]).cumsum(0).int().cuda()
        plan = AttentionPlan(
            sequences=len(queries), tokens=len(q), chunks=sum(-(-n // 512) for n in self.lengths.tolist()), heads=heads,
            kv_heads=self.kv_heads, head_dim=self.head_dim, max_queries=max(queries), shared_prefixes=bool(groups),
            sliding_window=int(options.get("sliding_window", 0)),
        )  # fmt: skip
        if groups:
            plan.update(self.lengths, starts, ints(*groups), ints(*[shared] * len(queries)))
        else:
            plan.update(self.lengths, starts)
        ops.paged_attention(
            q, self.cache[:, 1], self.tables, self.lengths, starts, torch.empty_like(q), 0.1, BLOCK, plan=plan,
            **options,
        )  # fmt: skip


def decode() -> None:
    for head_dim in cuda.TENSOR_CORE_HEAD_DIMS:
        for dtype, heads in ((BF16, 4), (F16, 3)):
            sequences = Sequences([1, 15, 16, 17, 600, 1100], 1, head_dim, dtype)
            sequences.attend([1] * 6, heads)
    sequences = Sequences([5, 700], 2, 128, BF16)
    sequences.attend([1, 1], 4, sliding_window=40)
    sequences.attend([2, 3], 4, softcap=20.0, sinks=data(4, dtype=F32))


def many_decodes() -> None:
    """More short items than the chip has warps: each of these takes its own alone."""
    sequences = Sequences([3 + 7 * n % 130 for n in range(200)], 8, 128, BF16)
    sequences.attend([1] * 200, 16)


def decode_step() -> None:
    for head_dim, dtype, options in ((64, BF16, {}), (128, F16, {"sliding_window": 40}), (256, BF16, {"softcap": 9.0})):
        sequences = Sequences([1, 17, 600, 1100], 2, head_dim, dtype)
        plan = AttentionPlan(
            sequences=4, tokens=4, chunks=7, heads=6, kv_heads=2, head_dim=head_dim, max_queries=1,
            sliding_window=int(options.get("sliding_window", 0)),
        )  # fmt: skip
        plan.update(sequences.lengths, ints(*range(5)))
        last = sequences.lengths.cpu().long() - 1
        slots = sequences.tables.cpu().long().gather(1, last[:, None] // BLOCK)[:, 0] * BLOCK + last % BLOCK
        ops.rope_attention(
            data(4, 10 * head_dim, dtype=dtype), empty(4, 6, head_dim, dtype=dtype), sequences.cache[:, 1],
            slots.cuda(), last.cuda(), data(1100, head_dim, dtype=F32), sequences.tables, sequences.lengths,
            ints(*range(5)), empty(4, 6, head_dim, dtype=dtype), 0.1, q_norm=data(head_dim, dtype=dtype),
            k_norm=data(head_dim, dtype=dtype), plan=plan, **options,
        )  # fmt: skip


def prefix() -> None:
    for heads, count in ((2, 3), (8, 9)):  # few rows a group, and many
        sequences = Sequences([1100 + 7 * i for i in range(count)], 2, 128, BF16, shared=64)
        sequences.attend([1] * count, heads, groups=(0,) * (count - 1) + (-1,), shared=1024)
        sequences.attend([1] * count, heads, groups=(0,) * (count - 1) + (-1,), shared=1024, softcap=20.0)
    sequences = Sequences([912] * 24, 8, 128, BF16, shared=32)  # groups of sixteen rows, more than run side by side
    sequences.attend([1] * 24, 32, groups=tuple(i // 4 for i in range(24)), shared=512)
    sequences = Sequences([520 + i for i in range(33)], 2, 128, BF16, shared=32)  # as many as make buffers go round
    sequences.attend([1] * 33, 8, groups=(0,) * 33, shared=512, softcap=20.0)
    for head_dim in cuda.TENSOR_CORE_HEAD_DIMS:
        sequences = Sequences([600, 610, 620], 1, head_dim, F16, shared=32)
        sequences.attend([1] * 3, 8, groups=(0, 0, 0), shared=512)


def extend() -> None:
    for head_dim in cuda.TENSOR_CORE_HEAD_DIMS:
        sequences = Sequences([40, 300, 200], 2, head_dim, BF16)
        sequences.attend([40, 130, 33], 4)
        sequences.attend([40, 130, 33], 4, softcap=20.0)
    sequences = Sequences([300, 190], 2, 64, F16)
    sequences.attend([200, 17], 4, sliding_window=70, sinks=data(4, dtype=F32))
    sequences.attend([200, 17], 4, sliding_window=70, softcap=5.0)


def cells(dtype: torch.dtype, head_dim: int) -> None:
    """Caches in eight bits, where tensor cores take them."""
    for kind in (torch.int8, torch.float8_e4m3fn):
        paged(Sequences([1, 17, 600], 1, head_dim, dtype, cells=kind), [1, 17, 40])


def plain(dtype: torch.dtype, head_dim: int) -> None:
    """Head dims and types that tensor cores do not take, over every kind of cache."""
    for kind in (None, torch.int8, torch.float8_e4m3fn):
        longest = 530 if kind is None and head_dim == 24 else 60  # beyond a chunk
        paged(Sequences([1, 17, longest], 1, head_dim, dtype, cells=kind), [1, 17, 20])


def paged(sequences: Sequences, queries: list[int]) -> None:
    """Writes and attention over the cache of three sequences."""
    head_dim, dtype = sequences.head_dim, sequences.dtype
    sequences.attend([1] * 3, 4)
    sequences.attend([1] * 3, 12, sliding_window=40)
    sequences.attend(queries, 4, softcap=20.0, sinks=data(4, dtype=F32))
    for norm, rotary in ((True, head_dim), (False, head_dim), (True, 16)):
        weights = {n: data(head_dim, dtype=dtype) for n in ("q_norm", "k_norm")} if norm else {}
        ops.rope_write_kv(
            data(3, 7 * head_dim, dtype=dtype), empty(3, 5, head_dim, dtype=dtype), sequences.cache[:, 1],
            ints(17, -1, 0, dtype=I64), ints(0, 1, 9, dtype=I64), data(10, rotary, dtype=F32), **weights,
        )  # fmt: skip


def cache() -> None:
    for head_dim in cuda.TENSOR_CORE_HEAD_DIMS:
        for norm, rotary in ((True, head_dim), (False, head_dim), (True, 8)):
            layers = ops.empty_cache(4, 2, 2, BLOCK, head_dim, BF16, "cuda")
            weights = {"q_norm": data(head_dim), "k_norm": data(head_dim)} if norm else {}
            ops.rope_write_kv(
                data(5, 7 * head_dim), empty(5, 3, head_dim), layers[:, 0], ints(17, 18, -1, 63, 0, dtype=I64),
                ints(0, 1, 2, 3, 9, dtype=I64), data(10, rotary, dtype=F32), **weights,
            )  # fmt: skip
    blocks = data(6, 2, 2, 2, BLOCK * 64)
    ops.copy_blocks(blocks, torch.tensor([[1, 4], [2, 5]]).cuda())
    if pools.reads_host(blocks.device):
        mapped = pools.empty_pools(3, 2, ops.block_bytes(1, 1, BLOCK, 64, BF16), BF16, blocks.device)
        k, slots = data(48, 1, 64), torch.arange(48).cuda()
        ops.write_kv(k, k, mapped.blocks.unflatten(1, (2, 1, -1)), slots, BLOCK)
        ops.copy_blocks(mapped.blocks, ints(1, mapped.first_host_block, dtype=I64).view(1, 2))
    host = torch.zeros(3, *blocks.shape[1:], dtype=BF16).pin_memory()
    ops.swap_blocks(blocks, host, torch.tensor([[1, 0], [4, 2]]))
    ops.swap_blocks(host, blocks, torch.tensor([[2, 3]]))


def between() -> None:
    """Norms and activations."""
    for dtype in (BF16, F16, F32):
        for width in (64, 200, 4096, 16384):
            x, weight = data(3, width, dtype=dtype), data(width, dtype=dtype)
            for residual in (None, data(3, width, dtype=dtype)):
                ops.rms_norm(x, weight, 1e-5, residual=residual)
                ops.layer_norm(x, weight, data(width, dtype=dtype), 1e-5, residual=residual)
        many, weight = data(8500, 264, dtype=dtype), data(264, dtype=dtype)  # more than the chip has threads
        ops.rms_norm(many, weight, 1e-5)
        ops.layer_norm(many, weight, data(264, dtype=dtype), 1e-5)
        for kind in ("silu", "gelu", "gelu_tanh"):
            ops.act_and_mul(data(3, 2 * 4104, dtype=dtype), kind)
            ops.act(data(3, 72, dtype=dtype), kind)
        ops.act(data(3, 72, dtype=dtype), "relu")


def linear() -> None:
    """Products of our own: where another library's kernel would be the faster one, nothing is launched."""
    for rows in (1, 5, 8, 16, 31):
        for columns, depth in ((272, 576), (48, 128), (1008, 2112), (72, 5184)):
            x, weight, bias = data(rows, depth), data(columns, depth), data(columns)
            for norm in (None, RmsNorm(data(depth))):
                out, half = empty(rows, columns), empty(rows, columns // 2)
                dense_cuda.launch_linear(Product(x, weight, norm=norm), out)
                more = data(rows, columns)
                dense_cuda.launch_linear(Product(x, weight, bias, residual=more, norm=norm, factor=0.22), out)
                dense_cuda.launch_linear(Product(x, weight, bias, norm=norm), half, 0)
    for columns, depth in ((25352, 64), (16000, 2112)):  # of so many rows, some are drawn
        x, weight = data(9, depth), data(columns, depth)
        dense_cuda.launch_linear(Product(x, weight, counter=ints(0)), empty(9, columns))
    if cuda.runs_hopper_code(torch.device("cuda")):
        for rows, columns, depth in ((1, 263, 520), (70, 40, 128), (300, 264, 520)):
            x, weight, bias = data(rows, depth), data(columns, depth), data(columns)
            ops.linear(Product(x, weight, bias, residual=data(rows, columns), uniform=True))


def wide() -> None:
    """Products of dozens of rows: of one and two consumers, pairs with the same rows or the same weights, several tiles
    for a block; with a gate and without one."""
    for rows, columns, depth in ((40, 272, 576), (100, 7424, 136), (129, 11424, 72), (1000, 6160, 136), (300, 80, 520)):
        dense_cuda.launch_linear(Product(data(rows, depth), data(columns, depth)), empty(rows, columns // 2), 0)
    for rows, columns, depth in ((50, 33032, 520), (33, 6144, 2760)):
        x, weight, bias = data(rows, depth), data(columns, depth), data(columns)
        dense_cuda.launch_linear(Product(x, weight, bias, residual=data(rows, columns)), empty(rows, columns))


def sample() -> None:
    rows = 6
    samples = ops.pack_samples(
        rows, seeds=range(rows), indices=[0, 1] * 3, positions=range(rows), temperature=[0.0, 1.0, 0.7] * 2,
        top_k=[0, 0, 3, 500, 2, 0], top_p=[1.0, 0.9, 0.5] * 2, min_p=[0.0, 0.0, 0.1] * 2,
    ).cuda()  # fmt: skip
    for vocab, dtype in ((5, F32), (1003, F32), (1003, BF16), (1003, F16), (9000, F32)):
        ops.sample(data(rows, vocab, dtype=dtype), samples)
    ops.sample(data(1, 20_000), samples[3:4])  # eight blocks a row
    ops.sample(torch.zeros(2, 9000).cuda(), samples[1:3])  # more survivors than can be listed
    parts = [draw_part(data(rows, 512, dtype=BF16), samples, first) for first in (0, 512)]
    best_part(torch.stack(parts), ints(*[0] * rows, dtype=I64))
    ops.logprobs(data(3, 1003, dtype=F32), ints(0, 7, 1002, dtype=I64), 4)
    message = pack([
        Adjustment(bias={3: 1.0}, prompt=[1, 2], output=[3, 3, 4], repetition=1.2, presence=0.5, frequency=0.1),
        Adjustment(forbidden=[0, 1002], masked=True),
    ])  # fmt: skip
    allowed = torch.randint(-(2**31), 2**31 - 1, (2, 32), dtype=I32).cuda()
    adjust(data(2, 1003, dtype=F32), torch.from_numpy(message).cuda(), ints(4, -1, dtype=I64), allowed)


def inputs() -> None:
    words = torch.from_numpy(step_message(moves=True, windows=True)).pin_memory()
    step.carry(words, message := torch.empty_like(words, device="cuda"))
    windows = step.WindowInputs.allocate(4, 4, 16, 3, torch.device("cuda"))
    places = step.StepInputs.allocate(4, 16, 3, torch.device("cuda"), states=True, windows=windows)
    step.unpack_step(message, torch.zeros_like(windows.tables), ints(9, 9, dtype=I64), places, 4, BLOCK)
    assert places.token_ids[:4].tolist() == [9, 5, 6, 7]


PIECES: dict[str, Callable[[], None]] = {
    piece.__name__: piece
    for piece in (
        decode,
        many_decodes,
        decode_step,
        prefix,
        extend,
        cache,
        between,
        linear,
        wide,
        coded,
        coded_wide,
        w8a8_products,
        wide_heads,
        experts,
        coded_experts,
        recurrent,
        sample,
        inputs,
        exchange,
    )
}
NAMES = {BF16: "bf16", F16: "f16", F32: "f32"}
for family, members in (  # in parts, because racecheck takes its time
    (cells, ((BF16, 64), (BF16, 128), (BF16, 256), (F16, 128))),
    (plain, ((F32, 24), (BF16, 24), (F16, 24), (F32, 256))),
):
    for dtype, head_dim in members:
        PIECES[f"{family.__name__}_{NAMES[dtype]}_{head_dim}"] = partial(family, dtype, head_dim)


def main() -> None:
    torch.manual_seed(0)
    recorder = cuda.compiled = Recorder(cuda.compiled)
    for name in sys.argv[1:] or PIECES:
        PIECES[name]()
        torch.cuda.synchronize()
        print(f"{name} launched", flush=True)
    if not sys.argv[1:] and recorder.missing():
        raise SystemExit(f"never launched: {', '.join(sorted(recorder.missing()))}")


if __name__ == "__main__":
    main()
