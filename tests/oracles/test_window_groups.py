"""Models some of whose layers have a window: those keep a window in blocks of their own, and no bit tells of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import forked_ranks

from octavo_worker.assembly.inspection import inspect
from octavo_worker.assembly.loading import load_runner
from octavo_worker.assembly.models import load_model
from octavo_worker.bench.quality import Loaded as Distributions
from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.windows import WindowBlocks
from octavo_worker.engine.drafts import ModelProposer, NgramProposer, Speculation
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.runner.paged import PagedRunner

from .conftest import Pair
from .drive import Answers, Engine, assert_same, request
from .gemmas import GEMMAS4
from .test_preemption import MixedPolicy
from .test_shapes import FREE, all_kinds, prompt
from .tiny import CONTEXT

GEMMA4 = next(iter(GEMMAS4))
NAMES = ["gemma3", "gemma2", GEMMA4, "gpt_oss", "exaone4", "olmo3", "cohere2", "smollm3-sliding", "exaone_moe"]
WINDOW, SIZE = 24, 16


def options_of(folder: Path, **more: Any) -> ModelOptions:
    fixed = {"num_blocks": 257, "host_cache_bytes": 8 << 20, "max_running": 64, "threads": 1, "max_model_len": CONTEXT}
    return ModelOptions(model=str(folder), device="cpu", dtype="float32", **fixed | more)


@pytest.fixture(scope="module")
def load(cpu_pair: Callable[[str], Pair]) -> Callable[..., PagedRunner]:
    @cache
    def loaded(name: str, **more: Any) -> PagedRunner:
        runner = load_runner(options_of(cpu_pair(name).folder, **more))
        assert isinstance(runner, PagedRunner)
        assert runner.windows is not None
        assert runner.windows.window == WINDOW
        return runner

    return loaded


def tight(runner: PagedRunner, *, beside: int = 4) -> WindowBlocks:
    """The first blocks of a runner's windows, with room for so many sequences."""
    assert runner.windows is not None
    live = Capacity(1, SIZE, window=WINDOW).sliding_blocks(1)
    return replace(runner.windows, num_blocks=1 + beside * live)


@pytest.fixture(scope="module")
def one_group(cpu_pair: Callable[[str], Pair]) -> Callable[[str], Answers]:
    """Answers where all layers keep whole sequences in blocks of one group."""

    @cache
    def run(name: str) -> Answers:
        model, _ = load_model(options_of(cpu_pair(name).folder))
        answers = Engine(PagedRunner(model, CacheConfig(257, SIZE), CONTEXT)).run(all_kinds())
        assert answers.stats.windows() == {}
        assert answers.stats.preemptions == 0
        assert len({token for tokens in answers.tokens.values() for token in tokens[0]}) > 20
        return answers

    return run


@pytest.mark.full(but=5)
@pytest.mark.parametrize("name", NAMES)
def test_no_bit_tells_of_the_group(
    name: str, load: Callable[..., PagedRunner], one_group: Callable[[str], Answers]
) -> None:
    assert_same(Engine(load(name)).run(all_kinds()), one_group(name))


@pytest.mark.full(but=2)
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_cut_anywhere(name: str, load: Callable[..., PagedRunner]) -> None:
    """In chunks of every length from one token on, in the memory of a window and a chunk."""
    asked = [request("a", prompt(75), max_tokens=3, prompt_logprobs=1, logprobs=1)]
    whole = Engine(load(name)).run(asked)
    for budget in range(1, 75):
        cut = Engine(load(name), token_budget=budget, windows=tight(load(name), beside=3)).run(asked)
        assert_same(cut, whole)


@pytest.mark.full(but=5)
@pytest.mark.parametrize("name", NAMES)
def test_a_cached_prefix_of_any_length(name: str, load: Callable[..., PagedRunner]) -> None:
    """Behind a prefix that another request left, an answer is that of an empty cache."""
    words = prompt(90)
    asked = [request(str(n), words[:n] + prompt(7), logprobs=1, max_tokens=9) for n in (17, 33, 64, 81, 90)]
    alone = [Engine(load(name)).run([one]) for one in asked]
    engine, few = Engine(load(name)), Engine(load(name), windows=tight(load(name), beside=2))
    missed = 0
    for each in (engine, few):
        each.run([request("first", words, max_tokens=8)])
        for one, expected in zip(asked, alone, strict=True):
            again = each.run([one])
            assert each is few or again.cached[one.id] == int(one.id) // SIZE * SIZE
            assert again.logprobs == expected.logprobs
            missed = again.stats.windowless_tokens
        assert (missed > 0) == (each is few), "a window that is gone cuts a hit short"


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("mode", ["recompute", "swap", "mixed"])
@pytest.mark.parametrize("short", ["blocks", "windows"])
@pytest.mark.parametrize("name", NAMES)
def test_preemption_changes_no_bit(
    name: str, short: str, mode: str, load: Callable[..., PagedRunner], one_group: Callable[[str], Answers]
) -> None:
    """Where either group has few blocks."""
    runner = load(name)
    memory: dict[str, Any] = {"num_blocks": 26} if short == "blocks" else {"windows": tight(runner)}
    hosts = 0 if mode == "recompute" else 100
    policy = MixedPolicy() if mode == "mixed" else PreemptionPolicy(mode)
    pressed = Engine(runner, num_host_blocks=hosts, policy=policy, reads_host=False, **memory).run(all_kinds())
    assert pressed.stats.preemptions > 0
    assert (pressed.stats.swapped_out > 0) == (mode != "recompute")
    assert_same(pressed, one_group(name))


@pytest.mark.full(but=2)
@pytest.mark.parametrize("mode", ["swap", "mixed"])
@pytest.mark.parametrize("name", NAMES)
def test_groups_that_share_memory_change_no_bit(
    name: str, mode: str, load: Callable[..., PagedRunner], one_group: Callable[[str], Answers]
) -> None:
    layouts = load(name).layout, load(name).window_layout
    slab_bytes = math.lcm(*(layout.block_bytes for layout in layouts if layout is not None))
    runner = load(name, num_blocks=None, kv_cache_bytes=36 * slab_bytes)
    assert runner.windows is not None
    assert runner.windows.slabs is not None
    policy = MixedPolicy() if mode == "mixed" else PreemptionPolicy(mode)
    pressed = Engine(runner, num_host_blocks=100, policy=policy, reads_host=False).run(all_kinds())
    assert pressed.stats.preemptions > 0
    assert pressed.stats.swapped_out > 0
    assert_same(pressed, one_group(name))


@pytest.mark.full(but=2)
@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_of_which_most_lies_on_the_host(name: str, load: Callable[..., PagedRunner]) -> None:
    asked = [request("a", prompt(150), max_tokens=30, temperature=0.7, logprobs=1)]
    whole = Engine(load(name)).run(asked)
    cold = Engine(load(name), num_blocks=7, num_host_blocks=100, token_budget=20).run(asked)
    assert cold.cold_steps > 20
    assert_same(cold, whole)


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", NAMES)
def test_drafts_change_no_bit(name: str, load: Callable[..., PagedRunner], one_group: Callable[[str], Answers]) -> None:
    speculation = Speculation(NgramProposer(least=1), FREE, 4)
    drafted = Engine(load(name), speculation=speculation, windows=tight(load(name), beside=30)).run(all_kinds())
    assert drafted.stats.drafted_tokens > 30
    assert_same(drafted, one_group(name))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", NAMES)
def test_a_draft_that_is_the_target_is_always_right(
    name: str, load: Callable[..., PagedRunner], cpu_pair: Callable[[str], Pair]
) -> None:
    """The draft model keeps whole sequences in the blocks of the first group."""
    asked = [one for one in all_kinds() if one.sampling.beam is None]
    runner = load(name, speculate=f"draft:{cpu_pair(name).folder}")
    answers = Engine(runner).run(asked)
    few = {"num_blocks": 16, "num_host_blocks": 200, "reads_host": False, "policy": PreemptionPolicy("swap")}
    for memory in ({}, few):
        drafted = Engine(runner, speculation=Speculation(ModelProposer(), FREE, 3), **memory).run(asked)
        assert_same(drafted, answers)
        assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens > 30


@pytest.fixture(scope="module")
def ranked(cpu_pair: Callable[[str], Pair]) -> Iterator[Callable[..., PagedRunner]]:
    started = []

    def load_ranks(name: str, **more: Any) -> PagedRunner:
        options = options_of(cpu_pair(name).folder, tensor_parallel=2, **more)
        started.append(ranks := forked_ranks(options))
        runner = load_runner(options, ranks)
        assert isinstance(runner, PagedRunner)
        return runner

    yield load_ranks
    for ranks in started:
        ranks.close()


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "olmo3"])
def test_two_ranks_have_equal_groups(name: str, ranked: Callable[[str], PagedRunner]) -> None:
    runner = ranked(name)
    assert runner.windows is not None
    whole = Engine(runner).run(all_kinds())
    policy = PreemptionPolicy("swap")
    pressed = Engine(runner, num_blocks=26, windows=tight(runner, beside=8), reads_host=False, policy=policy)
    pressed = pressed.run(all_kinds())  # type: ignore[assignment]
    assert_same(pressed, whole)  # type: ignore[arg-type]


@pytest.mark.full
def test_groups_of_two_ranks_share_memory(
    ranked: Callable[..., PagedRunner], one_group: Callable[[str], Answers]
) -> None:
    runner = ranked("gemma3", num_blocks=None, kv_cache_bytes=1 << 20)
    assert runner.windows is not None
    assert runner.windows.slabs is not None
    policy = PreemptionPolicy("swap")
    pressed = Engine(runner, num_host_blocks=100, reads_host=False, policy=policy).run(all_kinds())
    assert pressed.tokens == one_group("gemma3").tokens


def test_a_long_answer_keeps_a_window(load: Callable[..., PagedRunner]) -> None:
    runner = load("gemma3")
    engine = Engine(runner, token_budget=40)
    engine.run([request("a", prompt(200), max_tokens=60)])
    group = engine.scheduler.kv.windows
    assert group is not None
    assert group.bound == -(-(WINDOW + 40 - 2) // SIZE) + 1 == 5
    few = Engine(runner, token_budget=40, windows=tight(runner, beside=1))
    alone = few.run([request("a", prompt(200), max_tokens=60)])
    assert alone.stats.total_windows == 3
    assert alone.stats.preemptions == 0


def test_host_blocks_of_both_groups_share_the_memory(load: Callable[..., PagedRunner]) -> None:
    runner = load("gemma3")
    assert runner.windows is not None
    assert runner.window_layout is not None
    taken = runner.num_host_blocks * runner.layout.block_bytes
    taken += runner.windows.num_host_blocks * runner.window_layout.block_bytes
    assert (8 << 20) - taken < 2 * (runner.layout.block_bytes + runner.window_layout.block_bytes)


@pytest.mark.parametrize(("kv_dtype", "kept", "windowed"), [("auto", 2 * 2 * 16 * 4, 256), ("int8", 80, 80)])
def test_the_doctor_counts_a_token_in_each_group(
    kv_dtype: str, kept: int, windowed: int, cpu_pair: Callable[[str], Pair]
) -> None:
    config = cpu_pair("gemma3").oracle.config
    found = inspect(options_of(cpu_pair("gemma3").folder, kv_dtype=kv_dtype))
    sliding = config.layer_types.count("sliding_attention")
    layers = len(config.layer_types) - sliding
    assert (found.kept_bytes, found.window_bytes, found.window) == (layers * kept, sliding * windowed, WINDOW)


def test_distributions_are_read_of_both_groups(cpu_pair: Callable[[str], Pair]) -> None:
    """By `octavo bench quality`, of a text at once and token by token, in blocks that come round."""
    pair, words = cpu_pair("gemma3"), prompt(151)
    with torch.inference_mode():
        wanted = pair.oracle(torch.tensor([words[:-1]])).logits[0]
    loaded, generator = Distributions(options_of(pair.folder), 2, 150), torch.Generator().manual_seed(3)
    torch.testing.assert_close(loaded.logits(words), wanted, atol=1e-4, rtol=1e-4)
    texts = torch.full((2, 1), 7)
    for _ in range(99):
        with torch.inference_mode():
            logits = pair.oracle(texts).logits[:, -1].double()
        texts = torch.cat((texts, torch.multinomial(logits.softmax(-1), 1, generator=generator)), dim=1)
    assert loaded.sample(7, [], 2, 99, seed=3) == texts.tolist()
