"""The source of the GPU kernels for recurrent layers, run on the CPU with threads and copies in a random order.

What this shows: the arithmetic, that no cut and no launch shows in a bit, that nothing is read before it is there or
after it is gone, and that no thread waits for ever. What it does not: speed, and orders that only memory of a GPU can
show. test_cuda_recurrent.py runs them on one.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from recurrent_layers import Layer, Part, delta_layer, moves_of, ssm_layer

from octavo_kernels.recurrent import chunks

from . import recurrent_blocks as blocks
from .emulated_recurrent import EmulatedRecurrent
from .recurrent_blocks import BLOCK_LAYERS, CHUNKED_SSM, with_step

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

CUTS, WIDE_CUTS = (1, 2, 3, 4, 5), (1, 2)
PARTS = [Part(5, 1, 1), Part(11, write=3, keeps=[(2, 5), (9, 6), (11, 7)]), Part(1, 2, 4), Part(2, 9, 8, [(1, 10)])]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedRecurrent:
    return EmulatedRecurrent(tmp_path_factory.mktemp("recurrent"))


@pytest.fixture(params=BLOCK_LAYERS)
def layer(request: pytest.FixtureRequest, emulated: EmulatedRecurrent) -> Layer:
    emulated.set_up(4, 7)
    made = BLOCK_LAYERS[request.param](dtype=torch.bfloat16)
    return with_step(made, emulated.step_of(request.param))


def delta(
    emulated: EmulatedRecurrent, cut: int, seed: int, *sizes: int, dtype: torch.dtype = torch.bfloat16,
    beta_scale: float = 1.0,
) -> Layer:  # fmt: skip
    emulated.set_up(4, seed)
    layer = delta_layer(*sizes or (1, 2), 128, 128, dtype=dtype, beta_scale=beta_scale)
    return with_step(layer, emulated.delta_step, cut=cut)


@pytest.mark.parametrize("dtype", blocks.TOLERANCE)
@pytest.mark.parametrize("kind", BLOCK_LAYERS)
def test_outputs_and_states_are_those_of_the_reference(emulated, kind, dtype):
    emulated.set_up(4, 3)
    blocks.assert_reference(with_step(BLOCK_LAYERS[kind](dtype=dtype), emulated.step_of(kind)), PARTS)


def test_no_cut_into_steps_shows(layer):
    blocks.assert_no_cut_shows(layer, 21, [1, 2, 5, 13])


def test_what_is_kept_is_what_a_shorter_step_leaves(layer):
    blocks.assert_keeps_are_shorter_steps(layer, 11, [1, 2, 3, 8, 11])


def test_rows_alone_are_those_of_a_batch(layer):
    blocks.assert_alone_is_in_a_batch(layer, [1, 6, 10, 2])


def test_padding_touches_nothing(layer):
    blocks.assert_padding_touches_nothing(layer)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("dtype", blocks.TOLERANCE)
def test_the_delta_rule_in_any_blocks_is_that_of_the_reference(emulated, dtype, cut):
    blocks.assert_reference(delta(emulated, cut, cut, dtype=dtype), PARTS)


@pytest.mark.parametrize("sizes", [(2, 4), (2, 2), (2, 6), (1, 4)])
def test_blocks_of_the_delta_rule_change_no_bit(emulated, sizes):
    made = []
    for cut in CUTS:
        torch.manual_seed(1)
        layer = delta(emulated, cut, 10 + cut, *sizes)
        states = blocks.begun(layer, "cpu", (1,))
        out = blocks.step(layer, layer.rows(14), states, [Part(12, 1, 2), Part(2, 1, 3)])
        made.append((out, states.columns[1:4], states.matrices[1:4]))
    for other in made[1:]:
        assert all(torch.equal(*pair) for pair in zip(made[0], other, strict=True))


@pytest.mark.parametrize("heads", [2, 4])
def test_blocks_of_wide_heads_change_no_bit(emulated, heads):
    made = []
    for cut in WIDE_CUTS:
        torch.manual_seed(1)
        emulated.set_up(4, 10 + cut)
        layer = with_step(delta_layer(2, heads, 96, 192, dtype=torch.bfloat16), emulated.delta_step, cut=cut)
        made.append(after_mixed(layer))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


@pytest.mark.parametrize("cut", CUTS)
def test_columns_in_place_are_read_before_they_are_written(emulated, cut):
    """By all blocks that share a key head, whichever is late."""
    for seed in range(6):
        blocks.assert_no_cut_shows(delta(emulated, cut, seed, 2, 4), 3, [1, 2])


def chunked(emulated: EmulatedRecurrent, seed: int, *sizes: int, tiles: int | None = None, **more: object) -> Layer:
    """A layer whose prompts go by chunks, `tiles` at a time."""
    return with_step(delta(emulated, 0, seed, *sizes, **more), emulated.delta_step, chunked=True, tiles=tiles)


# Prompts whose last chunks are full, end early and end at keeps, beside what is walked.
PROMPTS = [
    Part(1, 1, 1), Part(64, 2, 2), Part(0, 3, 4), Part(7, write=5),
    Part(130, 6, 7, [(2, 0), (66, 8), (66, 9), (100, 0), (130, 10), (131, 11)]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_of_prompts_are_those_of_the_reference(emulated, dtype):
    """In parts that divide a sequence, too."""
    blocks.assert_reference(chunked(emulated, 5, 1, 2, tiles=3, dtype=dtype, beta_scale=2.0), PROMPTS)


def test_tokens_alike_that_forget_little_stay_close_to_float64(emulated):
    """Where what a token adds rests on all tokens of its chunk before it."""
    layer = chunked(emulated, 3, 1, 2, tiles=3)
    for step in (layer.step, layer.plain):
        step.keywords["rates"].copy_(torch.full((2,), -0.01))  # type: ignore[attr-defined]
    x, states = layer.rows(150) * 0.3 + layer.rows(1, seed=9), blocks.states_of(layer)
    out = blocks.step(layer, x, states, [Part(150, write=1)])
    exact = blocks.states_of(layer, matrix_dtype=torch.float64)
    wanted = layer.plain(x, exact, moves_of([Part(150, write=1)]))
    torch.testing.assert_close(out.float(), wanted.float(), atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(states.matrices[1].double(), exact.matrices[1], atol=5e-5, rtol=5e-5)


def test_what_is_no_prompt_is_walked_beside_chunks(emulated):
    """Decodes, a short prompt, and one that keeps a state behind each of its tokens."""
    walked = [Part(1, 1, 1), Part(9, 3, 3), Part(65, 4, 5, [(n, 6 + n) for n in range(1, 5)])]
    made, slots = [], [1, 3, 5, 7, 8, 9, 10]
    for make, parts in ((chunked, [*walked, Part(64, write=2)]), (partial(delta, cut=0), walked)):
        torch.manual_seed(2)
        layer = make(emulated, seed=6)
        states = blocks.begun(layer, "cpu", (1, 3, 4))
        out = blocks.step(layer, layer.rows(139)[: sum(part.rows for part in parts)], states, parts)
        made.append((out[:75], states.columns[slots], states.matrices[slots]))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


def test_parts_and_blocks_of_chunks_change_no_bit(emulated):
    made = []
    for tiles, multiprocessors in ((1, 3), (72, 40)):
        torch.manual_seed(1)
        layer = chunked(emulated, tiles, 2, 2, tiles=tiles)
        states = blocks.begun(layer, "cpu", (1, 2))
        emulated.set_up(multiprocessors, tiles)
        out = blocks.step(layer, layer.rows(194), states, [Part(130, 1, 1), Part(64, 2, 2)])
        made.append((out, states.columns[1:3], states.matrices[1:3]))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


def test_a_room_for_chunks_that_is_too_small_is_refused(emulated, monkeypatch):
    layer, parts = chunked(emulated, 1), [Part(64, write=1)]
    size = chunks.room_bytes(chunks.delta_tiles(1, 2), 64, 1)
    blocks.step(layer, layer.rows(64), blocks.states_of(layer), parts)
    monkeypatch.setattr(chunks, "room_bytes", lambda *_: size - 256)
    with pytest.raises(ValueError, match="error"):
        blocks.step(layer, layer.rows(64), blocks.states_of(layer), parts)


def ssm_chunked(emulated: EmulatedRecurrent, seed: int, layer: Layer, **how: object) -> Layer:
    """A layer of Mamba2 whose prompts go by chunks."""
    emulated.set_up(4, seed)
    return with_step(layer, emulated.ssm_step, chunked=True, **how)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_of_prompts_of_mamba2_are_those_of_the_reference(emulated, dtype):
    """In parts that divide a sequence, too."""
    layer = ssm_layer(1, 4, 128, 64, dtype=dtype, norm="whole", dt_limit=(0.3, 1.5))
    blocks.assert_reference(ssm_chunked(emulated, 5, layer, tiles=3), PROMPTS)


@pytest.mark.parametrize("kind", CHUNKED_SSM)
def test_chunks_of_any_heads_of_mamba2_are_those_of_the_reference(emulated, kind):
    layer = ssm_chunked(emulated, 6, CHUNKED_SSM[kind](dtype=torch.bfloat16))
    blocks.assert_reference(layer, [Part(1, 1, 1), Part(70, 2, 2, [(64, 3)])])


def test_tokens_of_a_chunk_behind_a_large_decay_lose_nothing(emulated):
    """Their decays are differences of sums in which nearly all is that of the tokens before."""
    layer = ssm_layer(1, 4, 128, 64, dtype=torch.bfloat16, norm="none")
    layer.step.keywords["rates"].fill_(-30.0)  # type: ignore[attr-defined]
    layer.plain.keywords["rates"].fill_(-30.0)  # type: ignore[attr-defined]
    x, parts = layer.rows(64), [Part(64, write=1)]
    x[:, -4:], x[:6, -4:] = -6.0, 40.0
    states, wanted = blocks.states_of(layer), blocks.states_of(layer, matrix_dtype=torch.float64)
    layer.plain(x, wanted, moves_of(parts))
    blocks.step(ssm_chunked(emulated, 7, layer), x, states, parts)
    torch.testing.assert_close(states.matrices[1].double(), wanted.matrices[1], atol=1e-6, rtol=1e-4)


def test_states_that_chunks_of_mamba2_leave_see_no_token_behind_them(emulated):
    layer = ssm_layer(1, 4, 128, 64, dtype=torch.bfloat16)
    x, kept, alone = layer.rows(70), blocks.states_of(layer), blocks.states_of(layer)
    blocks.step(with_step(layer, emulated.ssm_step), x[:3], alone, [Part(3, write=1)])
    x[3:] = float("inf")
    blocks.step(ssm_chunked(emulated, 8, layer), x, kept, [Part(70, keeps=[(3, 2)])])
    torch.testing.assert_close(kept.matrices[2], alone.matrices[1], atol=3e-5, rtol=1e-4)


def test_parts_and_blocks_of_chunks_of_mamba2_change_no_bit(emulated):
    made = []
    for tiles, multiprocessors in ((1, 3), (72, 40)):
        torch.manual_seed(1)
        layer = ssm_chunked(emulated, tiles, ssm_layer(2, 8, 128, 64, dtype=torch.bfloat16), tiles=tiles)
        states = blocks.begun(layer, "cpu", (1, 2))
        emulated.set_up(multiprocessors, tiles)
        out = blocks.step(layer, layer.rows(194), states, [Part(130, 1, 1), Part(64, 2, 2)])
        made.append((out, states.columns[1:3], states.matrices[1:3]))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


def test_what_is_no_prompt_of_mamba2_is_walked_beside_chunks(emulated):
    walked = [Part(1, 1, 1), Part(9, 3, 3), Part(65, 4, 5, [(n, 6 + n) for n in range(1, 5)])]
    made, slots = [], [1, 3, 5, 7, 8, 9, 10]
    for chunked, parts in ((True, [*walked, Part(64, write=2)]), (False, walked)):
        torch.manual_seed(2)
        emulated.set_up(4, 6)
        layer = with_step(ssm_layer(1, 4, 128, 64, dtype=torch.bfloat16), emulated.ssm_step, chunked=chunked)
        states = blocks.begun(layer, "cpu", (1, 3, 4))
        out = blocks.step(layer, layer.rows(139)[: sum(part.rows for part in parts)], states, parts)
        made.append((out[:75], states.columns[slots], states.matrices[slots]))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


def test_a_room_for_chunks_of_mamba2_that_is_too_small_is_refused(emulated, monkeypatch):
    layer = ssm_chunked(emulated, 1, ssm_layer(1, 4, 128, 64, dtype=torch.bfloat16))
    size, parts = chunks.room_bytes(chunks.ssm_tiles(1, 4, 128, 64), 64, 1), [Part(64, write=1)]
    monkeypatch.setattr(chunks, "room_bytes", lambda *_: size - 256)
    with pytest.raises(ValueError, match="error"):
        blocks.step(layer, layer.rows(64), blocks.states_of(layer), parts)


def test_sizes_of_the_delta_rule_that_no_kernel_takes_are_refused(emulated):
    few, wide = {"taps": 3}, (1, 2, 96, 192)
    for sizes, more, how in (
        ((1, 2, 64, 128), {}, {}), ((1, 2, 128, 64), {}, {}), ((1, 2, 128, 128), few, {}), ((1, 2, 96, 128), {}, {}),
        (wide, few, {}), (wide, {}, {"cut": 3}), (wide, {}, {"chunked": True}),
    ):  # fmt: skip
        layer = with_step(delta_layer(*sizes, **more), emulated.delta_step, **how)
        with pytest.raises(ValueError, match="error"):
            layer.step(layer.rows(64), blocks.states_of(layer), moves_of([Part(64)]))


# Sequences of any length, some without a state and some without rows, whose heads follow each other in a block.
MIXED = [
    Part(1, 1, 1), Part(0, 2, 3), Part(5, write=4, keeps=[(2, 5), (3, 6)]), Part(1), Part(3, 7, 7), Part(0),
    Part(1, 8, 9),
]  # fmt: skip


def after_mixed(layer: Layer) -> tuple[torch.Tensor, ...]:
    states = blocks.begun(layer, "cpu", (1, 2, 7, 8))
    out = blocks.step(layer, layer.rows(11), states, MIXED)
    return out, states.columns.nan_to_num(7.0), states.matrices.nan_to_num(7.0)


@pytest.mark.parametrize("multiprocessors", [1, 3])
def test_a_block_of_many_heads_of_the_delta_rule_is_as_many_blocks(emulated, multiprocessors):
    made = []
    for cut in (3, 5):
        torch.manual_seed(1)
        layer = delta(emulated, cut, 40 + cut, 2, 4)
        emulated.set_up(multiprocessors, cut)
        made.append(after_mixed(layer))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


def test_a_block_of_many_heads_of_mamba2_is_as_many_blocks(emulated):
    layer = with_step(BLOCK_LAYERS["ssm"](dtype=torch.bfloat16), emulated.ssm_step)
    made = []
    for multiprocessors in (1, 3, 100):
        emulated.set_up(multiprocessors, multiprocessors)
        made.append(after_mixed(layer))
    for other in made[1:]:
        assert all(torch.equal(*pair) for pair in zip(made[0], other, strict=True))
