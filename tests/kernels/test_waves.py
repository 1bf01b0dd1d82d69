"""The plain kernels on the CPU, in waves of 64 lanes as AMD's chips run them, under AMD's header.

They are compared with the reference, and with the CPU module where bits are promised; all warps of a block must come to
each barrier in one place. What this does not show: what AMD's compiler makes of the source, speed, and orders that only
memory of a GPU can show.
"""

from __future__ import annotations

import itertools
import subprocess

import pytest
import torch

from octavo_kernels import ops, reference
from octavo_kernels.attention.latent import latent_cells
from octavo_kernels.cache.blocks import CELLS
from octavo_kernels.operands import DTYPES as DTYPE_CODES
from octavo_kernels.operands import RmsNorm, address, norm_at, rows_at
from octavo_kernels.ops import Addend
from octavo_kernels.sampling.adjust import Adjustment, adjust, pack
from octavo_kernels.step import StepInputs, WindowInputs

from .step_words import step_message
from .waved import Waved, compile_one

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

F32, BF16, F16, I8, F8 = torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn
DTYPES = [F32, BF16, F16]
TOLERANCE = {F32: 2e-5, BF16: 1.6e-2, F16: 2e-3}
MIXED = [(1, 1), (1, 15), (1, 17), (1, 513), (0, 20), (1, 0), (3, 60), (5, 5), (33, 33), (40, 90)]
FEW = [(1, 17), (0, 20), (3, 60), (33, 33)]
LONG = [(1, 1300), (7, 1100), (1, 40)]  # of several chunks, and split queries

# Halves of a wave that come to different barriers, and to one; `main` says which.
PROBE = """
#include "device/common.cuh"
namespace octavo {
__global__ void apart(int*) {
  if (threadIdx.x / 32 % 2) __syncthreads();
  else __syncthreads();
}
__global__ void together(int* seen) {
  const unsigned bits = __ballot_sync(~0u, threadIdx.x % 3 == 0);
  __syncthreads();
  seen[threadIdx.x] = bits;
}
}
int main(int count, char**) {
  int memory[96], *seen = memory;
  octavo::launch_after(count > 1 ? octavo::apart : octavo::together, {dim3(1), 96}, nullptr, seen);
  for (int i = 0; i < 96; ++i)
    for (int lane = 0; lane < 32; ++lane)
      if ((seen[i] >> lane & 1) != ((i / 32 * 32 + lane) % 3 == 0)) return 3;
}
"""


@pytest.fixture(scope="module")
def waved(tmp_path_factory):
    return Waved(tmp_path_factory.mktemp("waved"))


@pytest.fixture
def patched(waved, monkeypatch):
    waved.patch(monkeypatch)
    return waved


def assert_close(got, expected, dtype, times=1):
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got.double(), expected.double(), atol=times * tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 200, 776, 1024, 8192])
@pytest.mark.parametrize("with_residual", [False, True])
def test_norms(patched, dtype, width, with_residual):
    x, residual = (torch.randn(3, width).to(dtype) for _ in range(2))
    weight, bias = torch.randn(width).to(dtype), torch.randn(width).to(dtype)
    total = (x.float() + residual.float()).to(dtype) if with_residual else x
    given = [residual.clone() if with_residual else None for _ in range(2)]
    rms = ops.rms_norm(x, weight, 1e-5, residual=given[0], offset=1.0)
    assert_close(rms, reference.rms_norm(total.double(), weight.double(), 1e-5, 1.0), dtype, 3)
    layer = ops.layer_norm(x, weight, bias, 1e-5, residual=given[1])
    assert_close(layer, reference.layer_norm(total.double(), weight.double(), bias.double(), 1e-5), dtype, 3)
    assert all(one is None or torch.equal(one, total) for one in given)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms_of_heads(patched, dtype):
    """Heads of keys become values beside them, or stay where they are."""
    qkv, weight = torch.randn(4, 5 * 64).to(dtype), torch.randn(64).to(dtype)
    query, keys, values = qkv.unflatten(1, (5, 64)).split((1, 2, 2), dim=1)
    wanted, untouched = reference.rms_norm(keys.double(), weight.double(), 1e-5), query.clone()
    for out in (values, keys):
        patched.run(
            "norm_heads", DTYPE_CODES[dtype], rows_at(keys), weight.data_ptr(), rows_at(out), *keys.shape, 1e-5, 0.0
        )
        assert_close(out, wanted, dtype, 3)
    assert torch.equal(query, untouched)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 264, 5376, 8192])
def test_one_launch_between_sublayers_has_the_bits_of_several(patched, dtype, width):
    def made(*shape):
        return torch.randn(shape).to(dtype)

    for two, posts, scales, normed in itertools.product((False, True), repeat=4):
        norms = [RmsNorm(made(width), 1e-5, 1.0) for _ in range(4)]
        hidden, first, second = made(3, width), made(3, width), made(3, width)
        addends = [Addend(first, norms[0] if posts else None), Addend(second, norms[1])][: 1 + two]
        post, scalar = norms[2] if posts else None, made(1) if scales else None
        factor, norm = 0.22 if scales else 1.0, norms[3] if normed else None
        found, out = hidden.clone(), torch.empty_like(hidden) if normed else None
        given = [(rows_at(addend.rows), norm_at(addend.norm)) for addend in addends]
        given += [(rows_at(None), norm_at(None))] * (2 - len(given))
        patched.run(
            "add_norms", DTYPE_CODES[dtype], *given, norm_at(post), factor, address(scalar), rows_at(found),
            norm_at(norm), rows_at(out), *hidden.shape,
        )  # fmt: skip
        after = ops.add_norms(hidden, addends, post=post, factor=factor, scalar=scalar, norm=norm)
        assert torch.equal(found, hidden)
        assert out is after is None or torch.equal(out, after)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_activations(patched, dtype, kind):
    x = (torch.randn(5, 2 * 264) * 4).to(dtype)
    assert_close(ops.act_and_mul(x, kind), reference.act_and_mul(x.double(), kind), dtype)


@pytest.mark.parametrize(
    ("dtype", "cells", "head_dim"),
    [
        (F32, None, 64), (BF16, None, 64), (BF16, None, 128), (F16, None, 96), (BF16, None, 256), (F16, None, 40),
        (BF16, I8, 64), (BF16, F8, 128), (F16, I8, 256), (F32, F8, 24), (F32, I8, 512 - 64),
    ],
)  # fmt: skip
def test_attention_over_what_was_written(patched, make_batch, dtype, cells, head_dim):
    for lengths, options in ((MIXED, {}), (LONG, {}), (FEW, {"window": 20}), (FEW, {"softcap": 3.0})):
        batch = make_batch(lengths, dtype=dtype, cells=cells, head_dim=head_dim)
        out = patched.attend(batch, 0.125, **options)
        named = {"sliding_window": options.get("window", 0), "softcap": options.get("softcap", 0.0)}
        for i, (keys, values) in enumerate(zip(batch.keys, batch.values, strict=True)):
            rows = batch.rows(i)
            expected = reference.attention(batch.q[rows].double(), keys.double(), values.double(), 0.125, **named)
            assert_close(out[rows], expected, dtype)


def test_heads_that_need_more_memory_than_a_block_has_are_refused(patched, make_batch):
    with pytest.raises(ValueError, match="no GPU kernel for these types and sizes"):
        patched.attend(make_batch([(1, 5)], head_dim=480), 0.125)


@pytest.mark.parametrize("cells", [None, I8, F8], ids=str)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("dtype", "head_dim", "rotary"), [(BF16, 64, 64), (F16, 128, 128), (BF16, 64, 16), (F16, 96, 24), (F32, 80, 40)]
)
def test_rotated_heads(patched, dtype, cells, norm, head_dim, rotary):
    """Queries as the reference turns them; keys as those that are written turned."""
    tokens, heads, kv_heads = 21, 5, 2
    qkv, positions = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim).to(dtype), torch.randint(0, 50, (tokens,))
    angles = torch.rand(50, rotary // 2) * 6
    cos_sin, weights = torch.cat((angles.cos(), angles.sin()), 1), [torch.rand(head_dim).to(dtype) for _ in range(2)]
    norms = dict(zip(("q_norm", "k_norm"), weights, strict=True)) if norm else {}
    slots = torch.randperm(48)[:tokens] + 16
    slots[3] = -1
    caches = [ops.empty_cache(4, 1, kv_heads, 16, head_dim, cells or dtype) for _ in range(2)]
    for cache in caches:
        cache.view(torch.uint8).zero_()
    q_out = torch.empty(tokens, heads, head_dim, dtype=dtype)
    ops.rope_write_kv(qkv, q_out, caches[0][:, 0], slots, positions, cos_sin, **norms, eps=1e-5)
    q, k, v = qkv.double().view(tokens, -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    if norm:
        q, k = (reference.rms_norm(x, w.double(), 1e-5) for x, w in zip((q, k), weights, strict=True))
    q, k = (reference.rope(x, positions, cos_sin.double()) for x in (q, k))
    assert_close(q_out, q, dtype)
    ops.write_kv(k.to(dtype), v.to(dtype), caches[1][:, 0], slots)
    if cells is None:
        assert_close(*caches, dtype)
    else:  # a code next to the middle between two may be either
        one, other = (cache.view(torch.uint8).int() for cache in caches)
        assert ((one - other).abs() > 1).sum() <= one.numel() // 50


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["sigmoid", "softplus"])
def test_gates_of_heads(patched, kind, dtype):
    """A gate of each head, and one of each value, whose logits are columns of a wider product."""
    activation = {"sigmoid": torch.sigmoid, "softplus": torch.nn.functional.softplus}[kind]
    for width in (1, 24):
        x, logits = torch.randn(5, 3, 24).to(dtype), (torch.randn(5, 3 * width + 8) * 4).to(dtype)[:, : 3 * width]
        wanted = x.double() * activation(logits.double()).view(5, 3, width)
        ops.gate_heads(x, logits, kind)
        assert_close(x, wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("width", "values", "block_size"), [(576, 512, 16), (288, 256, 32), (24, 16, 16)])
def test_latent_rows_are_read_as_they_were_kept(patched, width, values, block_size, dtype):
    """Blocks are any, in any order; in eight bits the latent is as it was rounded, and the rotated part whole."""
    tokens, rotary = 3 * block_size, width - values
    kept, positions = torch.randn(tokens, width).to(dtype), torch.randint(0, 50, (tokens,))
    angles, weight = torch.rand(50, rotary // 2) * 6, torch.rand(values).to(dtype)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    q = torch.randn(tokens, 2, width).to(dtype)
    expected = torch.cat((
        reference.rms_norm(kept[:, :values].double(), weight.double(), 1e-6),
        reference.rope(kept[:, None, values:].double(), positions, cos_sin.double())[:, 0],
    ), dim=1)  # fmt: skip
    slots = torch.tensor([3, 1, 4])[:, None] * block_size + torch.arange(block_size)
    for cells in (None, I8, F8):
        count = latent_cells(width, values, block_size, dtype, cells or dtype)
        cache = torch.zeros(5, 2, count, dtype=cells or dtype)[:, 1:, None]
        ops.keep_latent(
            q[..., values:].clone(), kept, RmsNorm(weight), q, cache, slots.flatten(), positions, cos_sin, block_size
        )
        out = torch.full((2 * block_size, width), float("nan"), dtype=dtype)
        heads = (DTYPE_CODES[dtype], rows_at(out), width, values)
        place = (cache.data_ptr(), CELLS.get(cells, 0), cache.stride(0), 0, cache.stride(2), block_size)
        blocks = torch.tensor([4, 3], dtype=torch.int32)
        patched.run("latent_read", *heads, place, blocks.data_ptr(), 2)
        wanted = torch.cat((expected[2 * block_size :], expected[:block_size]))
        assert_close(out[:, values:], wanted[:, values:], dtype)
        largest = wanted[:, :values].abs().amax(1, keepdim=True)
        bound = {None: 0.0, I8: 0.5 / 127, F8: 1 / 28}[cells] * largest + TOLERANCE[dtype] * (1 + largest)
        assert ((out[:, :values].double() - wanted[:, :values]).abs() <= bound).all()


def test_tokens_are_those_of_the_cpu(waved):
    generator = torch.Generator().manual_seed(3)
    for vocab, dtype in ((5, F32), (1003, F32), (4001, BF16), (9000, F16), (32_000, F32)):
        rows = 12
        logits = (torch.randn(rows, vocab, generator=generator) * 4).to(dtype)
        samples = ops.pack_samples(
            rows, seeds=range(rows), indices=[0, 1] * 6, positions=range(rows),
            temperature=[0.0, 1.0, 0.7, 1.0, 1.3, 1.0] * 2, top_k=[0, 0, 3, 50, 0, 700] * 2,
            top_p=[1.0, 0.9, 1.0, 0.8, 1.0, 1.0] * 2, min_p=[0.0, 0.0, 0.0, 0.0, 0.05, 0.0] * 2,
        )  # fmt: skip
        assert torch.equal(waved.sample(logits, samples), ops.sample(logits, samples))
    flat = torch.zeros(2, 9000)  # more survivors than can be listed
    samples = ops.pack_samples(
        2, seeds=[1, 2], indices=[0, 0], positions=[4, 4], temperature=[1.0, 1.0], top_p=[0.9, 0.5]
    )
    assert torch.equal(waved.sample(flat, samples), ops.sample(flat, samples))


@pytest.mark.parametrize("borders", [(4,), (512, 1024), (992,)])
def test_tokens_of_parts_are_those_of_whole_rows(waved, borders):
    """Without filters, whatever the samples ask for; with equals, and with rows and parts in which nothing is."""
    logits = (torch.randn(12, 1103, generator=torch.Generator().manual_seed(3)) * 4).round()
    logits[3], logits[4, : borders[0]], logits[5, borders[0] :] = -torch.inf, -torch.inf, -torch.inf
    logits[6, 7], logits[7] = torch.nan, 2.0
    given = {"seeds": range(12), "positions": range(12), "temperature": [0.0, 1.0, 0.7, 1.3] * 3}
    wanted = ops.sample(logits, ops.pack_samples(12, **given))
    samples = ops.pack_samples(12, **given, top_k=3, top_p=0.5, min_p=0.1)
    for dtype in DTYPES:
        assert torch.equal(waved.sample_in_parts(logits.to(dtype), samples, borders), wanted)
    assert wanted[3] == -1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logprobs(waved, dtype):
    logits, tokens = (torch.randn(3, 1003) * 3).to(dtype), torch.tensor([0, -1, 1002])
    chosen, ids, values = waved.logprobs(logits, tokens, 5)
    expected = logits.double().log_softmax(1)
    assert chosen[1].isnan()
    torch.testing.assert_close(chosen[::2].double(), expected[[0, 2], [0, 1002]], atol=1e-5, rtol=1e-5)
    assert torch.equal(ids, logits.float().sort(dim=1, descending=True, stable=True).indices[:, :5])
    torch.testing.assert_close(values.double(), expected.gather(1, ids), atol=1e-5, rtol=1e-5)


def test_adjusted_logits_are_those_of_the_cpu(waved):
    for vocab in (77, 40_003):
        given = torch.randn(3, vocab) * 3
        message = torch.from_numpy(pack([
            Adjustment(bias={3: 1.0}, prompt=[1, 2], output=[3, 3, 4], repetition=1.2, presence=0.5, frequency=0.1),
            Adjustment(forbidden=[0, 70], masked=True),
            Adjustment(output=[9], frequency=0.3, masked=True),
        ]))  # fmt: skip
        allowed = torch.randint(-(2**31), 2**31 - 1, (3, -(-vocab // 32)), dtype=torch.int32)
        latest = torch.tensor([4, -1, 11])
        cpu, own = given.clone(), given.clone()
        adjust(cpu, message, latest, allowed)
        waved.run(
            "adjust", (own.data_ptr(), vocab), 3, vocab, message.data_ptr(), latest.data_ptr(),
            (allowed.data_ptr(), allowed.stride(0)),
        )  # fmt: skip
        assert torch.equal(own, cpu)


def test_blocks_and_words_are_copied(patched):
    cache = torch.randn(9, 3, 2, 2, 16 * 64).to(BF16)
    expected = cache.clone()
    expected[5], expected[6], expected[7] = expected[1], expected[1], expected[2]
    pairs = torch.tensor([[1, 5], [1, 6], [2, 7]])
    patched.run("copy_blocks", cache.data_ptr(), cache[0].nbytes, pairs.data_ptr(), 3)
    assert torch.equal(cache, expected)
    target = torch.zeros_like(cache)
    patched.run("swap_blocks", cache.data_ptr(), target.data_ptr(), cache[0].nbytes, pairs.data_ptr(), 3)
    assert torch.equal(target[5:8], cache[[1, 1, 2]])
    words, back = torch.arange(1000, dtype=torch.int32), torch.zeros(1000, dtype=torch.int32)
    patched.run("carry", words.data_ptr(), back.data_ptr(), 1000)
    assert torch.equal(back, words)


@pytest.mark.parametrize(("moves", "windows"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_steps_inputs(patched, moves, windows):
    words = torch.from_numpy(step_message(moves=moves, windows=windows))
    found = WindowInputs.allocate(4, 4, 16, 3, torch.device("cpu"))
    found.slots.fill_(7)  # of a step before
    inputs, tables, previous = (
        StepInputs.allocate(4, 16, 3, torch.device("cpu"), states=moves, windows=found if windows else None),
        torch.zeros(4, 3).int(),
        torch.tensor([9, 9]),
    )
    patched.run(
        "unpack_step",
        words.data_ptr(),
        (tables.data_ptr(), 3),
        previous.data_ptr(),
        4,
        16,
        inputs.addresses(),
        inputs.move_addresses(),
        inputs.window_addresses(),
    )
    assert inputs.token_ids[:4].tolist() == [9, 5, 6, 7]
    assert inputs.context_lens.tolist() == [20, 3, 0, 0]
    assert inputs.query_start[:3].tolist() == [0, 1, 4]
    assert tables[:2, 0].tolist() == [2, 3]
    assert inputs.slots[:6].tolist() == [4 * 16 + 3, 32, 33, 34, -1, -1]
    if windows:
        assert found.tables[:2].tolist() == [[9, 0, 0], [0, 8, 0]]
        assert found.block_tables[:2, :2].tolist() == [[0, 8], [9, 0]]
        assert found.slots[:6].tolist() == [8 * 16 + 3, 144, 145, 146, -1, -1]
    if moves:
        moved = inputs.moves.of(inputs.query_start)
        assert [part.tolist() for part in (moved.read, moved.write)] == [[3, 0, 0, 0], [3, 4, 0, 0]]
        assert moved.keep_start.tolist() == [0, 0, 2, 2, 2]
        assert [part[:2].tolist() for part in (moved.keep_after, moved.keep_slot)] == [[1, 3], [5, 6]]


def test_a_wave_whose_halves_part_at_a_barrier_is_noticed(waved):
    folder = waved.folder
    (folder / "probe.cpp").write_text(PROBE)
    compile_one(folder, folder / "probe.cpp")
    subprocess.run(["c++", str(folder / "probe.o"), "-o", str(folder / "probe")], check=True)
    assert subprocess.run([folder / "probe"]).returncode == 0
    apart = subprocess.run([folder / "probe", "apart"], capture_output=True, text=True)
    assert apart.returncode != 0
    assert "different barriers" in apart.stderr
