"""Two groups of blocks on the runner of GPUs, over the CPU's kernels: messages, copies, swaps and steps ahead change no
bit."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from gpu_on_cpu import pretend

from octavo_worker.assembly.models import load_model
from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.step import StepPlan
from octavo_worker.contract.windows import BlockMoves, Slabs
from octavo_worker.engine.drafts import NgramProposer, Speculation
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.causal_model import CacheConfig, CausalModel, layouts_of
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.cuda.shapes import RaggedShape, StepShapes
from octavo_worker.runner.paged import PagedRunner

from .conftest import Pair
from .drive import Engine, assert_same, request
from .test_shapes import FREE, all_kinds, prompt
from .test_window_groups import GEMMA4, SIZE, WINDOW, options_of, tight
from .tiny import CONTEXT

BLOCKS, WINDOWS = 257, 300


def loaded(pair: Pair) -> CausalModel:
    return load_model(options_of(pair.folder))[0]


def pretended(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> CudaRunner:
    model = loaded(pair)
    pretend(monkeypatch)
    cache = CacheConfig(BLOCKS, SIZE, BLOCKS, num_window_blocks=WINDOWS, num_host_window_blocks=WINDOWS)
    runner = CudaRunner(model, cache, CONTEXT, 512, max_running=64, drafts=4, most_samples=320, graphs=False)
    assert runner.windows is not None
    assert runner.windows.window == WINDOW
    return runner


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ["gemma3", "gpt_oss", GEMMA4])
def test_steps_are_those_of_one_group(
    name: str, cpu_pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forks, beams, hits and scores; with drafts, and with few blocks of both groups, which go to the host and back."""
    expected = Engine(PagedRunner(loaded(cpu_pair(name)), CacheConfig(BLOCKS, SIZE), CONTEXT)).run(all_kinds())
    runner = pretended(cpu_pair(name), monkeypatch)
    speculation = Speculation(NgramProposer(least=1), FREE, 4)
    few = {"policy": PreemptionPolicy("swap"), "num_host_blocks": BLOCKS, "reads_host": False}
    pressed = Engine(runner, num_blocks=40, windows=tight(runner), speculation=speculation, **few).run(all_kinds())
    assert pressed.stats.preemptions > 0
    assert pressed.stats.swapped_out > 0
    assert pressed.stats.drafted_tokens > 0
    assert_same(pressed, expected)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ["gemma3", "gpt_oss", GEMMA4])
def test_groups_share_memory(name: str, cpu_pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Engine(PagedRunner(loaded(cpu_pair(name)), CacheConfig(BLOCKS, SIZE), CONTEXT)).run(all_kinds())
    model = loaded(cpu_pair(name))
    pretend(monkeypatch)
    sizes = [layout.block_bytes for layout in layouts_of(model, SIZE)]
    blocks, windows = (36 * math.lcm(*sizes) // each for each in sizes)
    sequence = Capacity(1, SIZE, window=WINDOW)
    slabs = Slabs.of(36, blocks, windows, sequence.sliding_blocks(1), sequence.sliding_blocks(512))
    cache = CacheConfig(blocks, SIZE, BLOCKS, num_window_blocks=windows, num_host_window_blocks=BLOCKS, slabs=slabs)
    runner = CudaRunner(model, cache, CONTEXT, 512, max_running=64, drafts=4, most_samples=320, graphs=False)
    speculation = Speculation(NgramProposer(least=1), FREE, 4)
    few = {"policy": PreemptionPolicy("swap"), "num_host_blocks": BLOCKS, "reads_host": False}
    pressed = Engine(runner, speculation=speculation, **few).run(all_kinds())
    assert pressed.stats.swapped_out > 0
    assert_same(pressed, expected)


@pytest.mark.parametrize("staged", [False, True])
def test_a_sequence_of_which_most_lies_on_the_host(
    staged: bool, cpu_pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its windows never do: where layers are gathered before their attention, those with a window are not."""
    asked = [request("a", prompt(150), max_tokens=30, temperature=0.7, logprobs=1)]
    whole = Engine(PagedRunner(loaded(cpu_pair("gemma3")), CacheConfig(BLOCKS, SIZE), CONTEXT)).run(asked)
    runner = pretended(cpu_pair("gemma3"), monkeypatch)
    monkeypatch.setattr(StepShapes, "of", lambda *_: RaggedShape(1, prompts_only=False, is_staged=staged))
    cold = Engine(runner, num_blocks=7, num_host_blocks=100, token_budget=20, windows=tight(runner)).run(asked)
    assert cold.cold_steps > 20
    assert_same(cold, whole)


def test_blocks_of_windows_move_by_themselves(cpu_pair: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """Out, back, copied, and at once out again; blocks of the other group stay."""
    runner = pretended(cpu_pair("gemma3"), monkeypatch)
    assert runner.windows is not None
    assert runner.window_pools is not None
    device, host, first = runner.window_pools.device, runner.window_pools.host, runner.windows.first_host_block
    assert first != runner.first_host_block
    runner.kv_cache.zero_()
    device.zero_()
    device[1].fill_(7)
    runner.launch(StepPlan([], 0, windows=BlockMoves(swap_out=[(1, first + 1)]))).result()
    device[1].zero_()
    moves = BlockMoves(copies=[(2, 4)], swap_out=[(2, first + 3)], swap_in=[(first + 1, 2)])
    runner.launch(StepPlan([], 0, windows=moves)).result()
    for block in (device[2], device[4], host[3]):
        assert (block == 7).all()
    assert not device[1].any()
    assert not runner.kv_cache.any()
