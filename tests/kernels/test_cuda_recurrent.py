"""Recurrent layers on a GPU: against float64, bit for bit under any cut, alone as in a batch, in graphs."""

from __future__ import annotations

import pytest
import torch
from recurrent_layers import Layer, Part, delta_layer, moves_of, same, ssm_layer
from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.recurrent import chunks, delta

from . import recurrent_blocks as blocks
from .recurrent_blocks import BLOCK_LAYERS, CHUNKED_SSM, with_step

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

CUTS, WIDE_CUTS = (1, 2, 3, 4, 5), (1, 2)
SHAPES = {"9B": (16, 32), "2B": (16, 16), "27B": (16, 48)}
PARTS = [Part(5, 1, 1), Part(70, write=3, keeps=[(2, 5), (64, 6), (70, 7)]), Part(1, 2, 4), Part(2, 9, 8, [(1, 10)])]


def on_gpu(layer: Layer) -> Layer:
    return with_step(layer, layer.step.func, "cuda")  # type: ignore[attr-defined]


@pytest.fixture(params=BLOCK_LAYERS)
def layer(request: pytest.FixtureRequest) -> Layer:
    return on_gpu(BLOCK_LAYERS[request.param](dtype=torch.bfloat16))


@pytest.fixture(params=CUTS)
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How the delta rule is cut into blocks."""
    use_cut(monkeypatch, request.param)
    return int(request.param)


def use_cut(monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    def run(_: str, tensors: dict[str, Tensor], *arguments: object) -> None:
        cuda.run("delta_step_cut", tensors["x"].device, *arguments, cut)

    monkeypatch.setattr(delta, "run", run)


@pytest.mark.parametrize("dtype", blocks.TOLERANCE)
@pytest.mark.parametrize("kind", BLOCK_LAYERS)
def test_outputs_and_states_are_those_of_the_reference(kind, dtype):
    blocks.assert_reference(on_gpu(BLOCK_LAYERS[kind](dtype=dtype)), PARTS, "cuda")


def test_no_cut_into_steps_shows(layer):
    blocks.assert_no_cut_shows(layer, 300, [1, 2, 5, 13, 100, 164, 299], "cuda")


def test_what_is_kept_is_what_a_shorter_step_leaves(layer):
    blocks.assert_keeps_are_shorter_steps(layer, 100, [1, 2, 3, 8, 64, 99, 100], "cuda")


def test_rows_alone_are_those_of_a_batch(layer):
    blocks.assert_alone_is_in_a_batch(layer, [1, 6, 10, 2, 1, 150, 17], "cuda")


def test_padding_touches_nothing(layer):
    blocks.assert_padding_touches_nothing(layer, "cuda")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_delta_rule_of_models_is_that_of_the_reference(shape):
    blocks.assert_reference(on_gpu(delta_layer(*SHAPES[shape], 128, 128, dtype=torch.bfloat16)), PARTS, "cuda")


@pytest.mark.parametrize("dtype", blocks.TOLERANCE)
def test_the_delta_rule_in_any_blocks_is_that_of_the_reference(cut, dtype):
    blocks.assert_reference(on_gpu(delta_layer(2, 4, 128, 128, dtype=dtype)), PARTS, "cuda")


def test_no_cut_shows_in_any_blocks_of_the_delta_rule(cut):
    layer = on_gpu(delta_layer(16, 32, 128, 128, dtype=torch.bfloat16))
    blocks.assert_no_cut_shows(layer, 1000, [1, 2, 3, 4, 17, 600, 999], "cuda")


@pytest.mark.parametrize(("sizes", "cuts"), [((16, 32, 128, 128), CUTS), ((30, 30, 96, 192), WIDE_CUTS)])
def test_blocks_of_the_delta_rule_change_no_bit(sizes, cuts, monkeypatch):
    layer, made = on_gpu(delta_layer(*sizes, dtype=torch.bfloat16)), []
    for cut in cuts:
        use_cut(monkeypatch, cut)
        states = blocks.begun(layer, "cuda", (1,))
        out = blocks.step(layer, layer.rows(240).cuda(), states, [Part(200, 1, 2), Part(1, 1, 3), Part(39, 1, 4)])
        made.append((out, states.columns[1:5], states.matrices[1:5]))
    for other in made[1:]:
        assert all(torch.equal(*pair) for pair in zip(made[0], other, strict=True))


def test_wide_heads_have_no_chunks():
    """However they are asked for."""
    made = []
    for chunked in (False, True):
        torch.manual_seed(3)
        layer = delta_layer(2, 2, 96, 192, dtype=torch.bfloat16)
        layer = with_step(layer, layer.step.func, "cuda", chunked=chunked)  # type: ignore[attr-defined]
        states = blocks.states_of(layer, "cuda")
        made.append((blocks.step(layer, layer.rows(130).cuda(), states, [Part(130, write=1)]), states.matrices[1]))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


def by_chunks(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> Layer:
    layer = delta_layer(*sizes, 128, 128, dtype=dtype)
    return with_step(layer, layer.step.func, "cuda", chunked=True)  # type: ignore[attr-defined]


PROMPTS = [
    Part(1, 1, 1), Part(64, 2, 2), Part(0, 3, 4), Part(7, write=5), Part(63, 12, 12),
    Part(330, 6, 7, [(2, 0), (66, 8), (66, 9), (100, 0), (256, 13), (330, 10), (331, 11)]), Part(200, 14, 14),
]  # fmt: skip


@pytest.mark.parametrize("tiles", [2, chunks.DELTA_TILES])
@pytest.mark.parametrize("shape", [(1, 2), (2, 6), (2, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_of_prompts_are_those_of_the_reference(shape, dtype, tiles, monkeypatch):
    """In parts that divide sequences, too."""
    monkeypatch.setattr(chunks, "DELTA_TILES", tiles)
    blocks.assert_reference(by_chunks(*shape, dtype=dtype), PROMPTS, "cuda")


def test_what_is_no_prompt_is_walked_beside_chunks():
    walked = [Part(1, 1, 1), Part(63, 3, 3), Part(65, 4, 5, [(n, 6 + n) for n in range(1, 5)])]
    made, slots = [], [1, 3, 5, 7, 8, 9, 10]
    for parts in ([*walked, Part(500, write=2)], walked):
        torch.manual_seed(2)
        layer = by_chunks(16, 32) if len(parts) > 3 else on_gpu(delta_layer(16, 32, 128, 128, dtype=torch.bfloat16))
        states = blocks.begun(layer, "cuda", (1, 3, 4))
        out = blocks.step(layer, layer.rows(629)[: sum(part.rows for part in parts)].cuda(), states, parts)
        made.append((out[:129], states.columns[slots], states.matrices[slots]))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


def test_chunks_are_the_same_every_time_and_in_any_parts(monkeypatch):
    assert_same_in_any_parts(by_chunks(16, 32), monkeypatch, DELTA_TILES=7)


def assert_same_in_any_parts(layer: Layer, monkeypatch: pytest.MonkeyPatch, **parts: int) -> None:
    """Ten times with the room that there is, and once with the size of `parts` of a step that `chunks` is told of."""
    ((name, small),) = parts.items()
    x, first = layer.rows(5500).cuda(), None
    for size in [getattr(chunks, name)] * 10 + [small]:
        monkeypatch.setattr(chunks, name, size)
        states = blocks.begun(layer, "cuda", (1, 2, 3))
        out = blocks.step(layer, x, states, [Part(5000, 1, 1), Part(1, 2, 2), Part(499, 3, 3)])
        now = (out, states.columns[1:4].clone(), states.matrices[1:4].clone())
        first = first or now
        assert all(torch.equal(*pair) for pair in zip(first, now, strict=True))


def test_a_long_prompt_by_chunks_stays_close_to_float64():
    """As close as a walk's outputs in bfloat16 and state, with decays near one."""
    layer = delta_layer(1, 2, 128, 128, dtype=torch.bfloat16)
    layer.step.keywords["rates"].mul_(0.01)  # type: ignore[attr-defined]
    x, states = layer.rows(2000), blocks.states_of(layer, "cuda")
    chunked = with_step(layer, layer.step.func, "cuda", chunked=True)  # type: ignore[attr-defined]
    out = blocks.step(chunked, x.cuda(), states, [Part(2000, write=1)])
    exact = blocks.states_of(layer, matrix_dtype=torch.float64)
    wanted = layer.plain(x, exact, moves_of([Part(2000, write=1)]))
    torch.testing.assert_close(out.cpu().float(), wanted.float(), atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(states.matrices[1].cpu().double(), exact.matrices[1], atol=2e-4, rtol=2e-4)


def ssm_by_chunks(layer: Layer) -> Layer:
    return with_step(layer, layer.step.func, "cuda", chunked=True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("room", [1, chunks.SSM_BYTES], ids=["chunk", "room"])
@pytest.mark.parametrize("kind", CHUNKED_SSM)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_of_prompts_of_mamba2_are_those_of_the_reference(kind, dtype, room, monkeypatch):
    """A chunk at a time, too."""
    monkeypatch.setattr(chunks, "SSM_BYTES", room)
    blocks.assert_reference(ssm_by_chunks(CHUNKED_SSM[kind](dtype=dtype)), PROMPTS, "cuda")


@pytest.mark.parametrize("sizes", [(1, 128, 128, 64), (8, 64, 128, 64), (1, 32, 256, 128)])
def test_chunks_of_mamba2_of_models_are_the_same_every_time_and_in_any_parts(sizes, monkeypatch):
    assert_same_in_any_parts(ssm_by_chunks(ssm_layer(*sizes, dtype=torch.bfloat16)), monkeypatch, SSM_BYTES=5 << 20)


@pytest.mark.parametrize("slow", [0.01, 1.0])
def test_a_long_prompt_of_mamba2_by_chunks_stays_close_to_float64(slow):
    """As close as a walk's outputs in bfloat16 and state, with decays near one and others."""
    layer = ssm_layer(1, 4, 128, 64, dtype=torch.bfloat16)
    for call in (layer.step, layer.plain):
        call.keywords["rates"] = call.keywords["rates"] * slow  # type: ignore[attr-defined]
    x, states = layer.rows(2000), blocks.states_of(layer, "cuda")
    out = blocks.step(ssm_by_chunks(layer), x.cuda(), states, [Part(2000, write=1)])
    exact = blocks.states_of(layer, matrix_dtype=torch.float64)
    wanted = layer.plain(x, exact, moves_of([Part(2000, write=1)]))
    torch.testing.assert_close(out.cpu().float(), wanted.float(), atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(states.matrices[1].cpu().double(), exact.matrices[1], atol=2e-4, rtol=2e-4)


def test_what_is_no_prompt_of_mamba2_is_walked_beside_chunks():
    walked = [Part(1, 1, 1), Part(63, 3, 3), Part(65, 4, 5, [(n, 6 + n) for n in range(1, 5)])]
    made, slots = [], [1, 3, 5, 7, 8, 9, 10]
    for chunked, parts in ((True, [*walked, Part(500, write=2)]), (False, walked)):
        torch.manual_seed(2)
        layer = on_gpu(ssm_layer(1, 128, 128, 64, dtype=torch.bfloat16))
        layer = with_step(layer, layer.step.func, "cuda", chunked=chunked)  # type: ignore[attr-defined]
        states = blocks.begun(layer, "cuda", (1, 3, 4))
        out = blocks.step(layer, layer.rows(629)[: sum(part.rows for part in parts)].cuda(), states, parts)
        made.append((out[:129], states.columns[slots], states.matrices[slots]))
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))


@pytest.mark.parametrize("kind", ["delta", "ssm"])
def test_a_graph_takes_other_prompts(kind):
    """Which of its rows go by chunks, and in how many, is what the words of a replay say."""
    layer = by_chunks(2, 4) if kind == "delta" else ssm_by_chunks(ssm_layer(2, 8, 128, 64, dtype=torch.bfloat16))
    x, eager, states = layer.rows(200).cuda(), *(blocks.begun(layer, "cuda", (1, 2, 3)) for _ in range(2))
    static, moves = torch.zeros_like(x), moves_of([Part(198), Part(1), Part(1, keeps=[(1, 0)])], "cuda")
    layer.step(static, states, moves)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer.step(static * 1, states, moves)
    static.copy_(x)
    two = [Part(70, 1, 1), Part(64, 2, 2, [(10, 4)]), Part(66, 3, 5)]
    one = [Part(1, 1, 1), Part(2, 2, 6, [(1, 7)]), Part(197, 3, 3)]
    for parts in (two, one):
        wanted = blocks.step(layer, x, eager, parts)
        for place, words in zip(moves, moves_of(parts, "cuda"), strict=True):
            place[: len(words)].copy_(words)
        graph.replay()
        assert torch.equal(out, wanted)
    assert all(same(states, slot, eager, slot) for slot in range(1, 8))


def test_many_sequences_in_place_are_the_same_every_time(layer):
    """Blocks that share columns of the convolution come in any order."""
    lengths = [1, 2, 3, 1] * 5
    x, first = layer.rows(sum(lengths)).cuda(), None
    for _ in range(20):
        states = blocks.begun(layer, "cuda", range(1, 21))
        out = blocks.step(layer, x, states, [Part(n, s + 1, s + 1) for s, n in enumerate(lengths)])
        now = (out, states.columns[1:21].clone())
        first = first or now
        assert all(torch.equal(*pair) for pair in zip(first, now, strict=True))


def test_a_graph_takes_other_slots_and_padding(layer):
    """Its words are those of the replay; what is padding touches no slot."""
    x, eager = layer.rows(6).cuda(), blocks.begun(layer, "cuda", (1, 2, 3))
    static, moves = torch.zeros_like(x), moves_of([Part(1)] * 6, "cuda")
    states = blocks.begun(layer, "cuda", (1, 2, 3))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = static * 1  # states must be older than the kernel in front of the layer
        out = layer.step(rows, states, moves)
    for parts in ([Part(1, 1, 1), Part(1, 2, 4)], [Part(1, 3, 3), Part(1, 4, 4), Part(1, 1, 5)]):
        wanted = blocks.step(layer, x[: len(parts)], eager, parts)
        padded = moves_of([*parts, *[Part(1)] * (6 - len(parts))], "cuda")
        for place, words in zip(moves, padded, strict=True):
            place.copy_(words)
        static.copy_(x)
        graph.replay()
        assert torch.equal(out[: len(parts)], wanted)
    assert all(same(states, slot, eager, slot) for slot in range(1, 6))
    assert states.columns[6:].isnan().all()


@pytest.mark.parametrize("sizes", [(1, 2, 64, 128), (1, 2, 128, 64), (1, 2, 16, 24)])
def test_sizes_of_the_delta_rule_that_no_kernel_takes_are_refused(sizes):
    layer = on_gpu(delta_layer(*sizes))
    with pytest.raises(ValueError, match="no GPU kernel for these types and sizes"):
        layer.step(layer.rows(1).cuda(), blocks.states_of(layer, "cuda"), moves_of([Part(1)], "cuda"))


def test_a_long_prompt_stays_close_to_float64():
    layer = delta_layer(1, 2, 128, 128, dtype=torch.float32)
    layer.step.keywords["rates"].mul_(0.01)  # type: ignore[attr-defined]
    x, states = layer.rows(2000), blocks.states_of(layer, "cuda")
    out = blocks.step(on_gpu(layer), x.cuda(), states, [Part(2000, write=1)])
    exact = blocks.states_of(layer, matrix_dtype=torch.float64)
    wanted = layer.plain(x, exact, moves_of([Part(2000, write=1)]))
    torch.testing.assert_close(out.cpu(), wanted, atol=1e-4, rtol=1e-4)
