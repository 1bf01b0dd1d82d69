"""Drafts of a model: they change no bit of what is said, and are right where the draft is the target, wherever the
memory of a sequence went meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from watched_draft import watched

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.drafts import ModelProposer, RowTimes, Speculation, StepCosts
from octavo_worker.runner.paged import PagedRunner

from .conftest import Pair
from .drive import Answers, Engine, Orphans, assert_same, request
from .test_speculation import FORM, MEMORIES, SAMPLINGS, requests_for

FREE = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4096, 1.0)]), RowTimes([(1, 1e-9)]))
"""Any draft pays, and catching up does."""
FIXED: dict[str, Any] = {"device": "cpu", "threads": 1, "num_blocks": 513, "host_cache_bytes": 32 << 20}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "float32": ("llama", {"dtype": "float32"}),
    "bfloat16": ("llama", {"dtype": "bfloat16"}),
    "sliding": ("mistral", {"dtype": "bfloat16"}),
    "some layers slide": ("gemma2", {"dtype": "float32"}),
    "transformers' code": ("gpt_neox", {"dtype": "bfloat16"}),
    "bundled": ("demo", {}),
    "int8 cache": ("demo", {"kv_dtype": "int8"}),
}
SMALLER: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {},
    "int8 cache": {"kv_dtype": "int8"},
    "int4 weights": {"quantization": "int4"},
    "int8 weights": {"quantization": "int8"},
}


@pytest.fixture(scope="session")
def twins_of(cpu_pair: Callable[[str], Pair]) -> Callable[[str], PagedRunner]:
    """Runners whose draft is their own model."""

    @cache
    def load(kind: str) -> PagedRunner:
        name, options = KINDS[kind]
        folder: str | Path = name if name == "demo" else cpu_pair(name).folder
        return load_with(str(folder), str(folder), max_running=64, **options)

    return load


@cache
def with_bundled_draft(kind: str, **options: Any) -> PagedRunner:
    return load_with("demo", "demo-draft", max_running=16, **SMALLER[kind], **options)


def load_with(model: str, draft: str, **options: Any) -> PagedRunner:
    runner = load_runner(ModelOptions(model=model, speculate=f"draft:{draft}", **FIXED | options))
    assert isinstance(runner, PagedRunner)
    return runner


def by_model(most: int) -> Speculation:
    return Speculation(ModelProposer(), FREE, most)


def without_beams(name: str) -> list[Any]:
    return [asked for asked in requests_for(name) if asked.sampling.beam is None]


@pytest.mark.full(but=4)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_that_is_the_target_is_always_right(
    kind: str, memory: str, twins_of: Callable[[str], PagedRunner]
) -> None:
    """At every temperature, with every option, in forks, after preemptions and swaps: whatever it missed of a sequence
    it computes, and what it has is of that sequence."""
    runner, options = twins_of(kind), MEMORIES[memory]
    asked = [one for one in without_beams(KINDS[kind][0]) if one.grammar is None]
    if memory == "oversized":
        asked += [request("long", [7, 8, 9] * 45, max_tokens=40, temperature=0.7, logprobs=1)]
    if options:
        options = {**options, "num_blocks": 8 if runner.window or memory == "oversized" else 12}
    answers = Engine(runner).run(asked)
    drafted = Engine(runner, speculation=by_model(3), **options).run(asked)
    assert_same(drafted, answers)
    assert (drafted.stats.preemptions > 0) == (memory != "ample")
    assert drafted.stats.swapped_out > 0 or memory in ("ample", "recomputed")
    assert drafted.stats.drafted_tokens > 100
    if not runner.window or memory == "ample":  # else it may begin where what lies left of the window is gone
        assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens


@pytest.mark.full(but=1)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", SMALLER)
def test_a_smaller_draft_changes_nothing(kind: str, memory: str) -> None:
    runner, asked = with_bundled_draft(kind), requests_for("demo")
    if memory == "oversized":
        asked = without_beams("demo")
    answers = Engine(runner).run(asked)
    drafted = Engine(runner, speculation=by_model(5), **MEMORIES[memory]).run(asked)
    assert_same(drafted, answers)
    stats = drafted.stats
    assert 100 < stats.accepted_tokens < stats.drafted_tokens


@pytest.mark.full(but=1)
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_the_bundled_draft_often_agrees_at_any_temperature(temperature: float) -> None:
    """Drawn with the noise of the target: others are right at temperature 1 where the target is certain only."""
    runner = with_bundled_draft("bfloat16")
    prompts = [[0, 50 + 7 * seed, 199, 30 + seed, 204] for seed in range(12)]
    asked = [
        request(str(seed), prompt, max_tokens=100, temperature=temperature, seed=seed)
        for seed, prompt in enumerate(prompts)
    ]
    drafted = Engine(runner, speculation=by_model(1)).run(asked)
    assert drafted.stats.accepted_tokens > 0.45 * drafted.stats.drafted_tokens
    assert_same(drafted, Engine(runner).run(asked))


def test_another_engine_goes_on_amid_a_window() -> None:
    runner, rng, asked = with_bundled_draft("bfloat16"), random.Random(4), without_beams("demo")
    answers = Engine(runner).run(asked)
    orphans = Orphans.of(asked, answers, rng)
    drafted = Engine(runner, speculation=by_model(4)).run(orphans.requests)
    assert drafted.stats.accepted_tokens > 30
    orphans.assert_gone_on(drafted)


def test_missed_tokens_are_caught_up_in_pieces() -> None:
    """A step computes no more of it than of prompts. What is not there yet is decoded without drafts meanwhile."""
    runner = load_with("demo", "demo", token_budget=16, max_running=8)
    asked = [request(str(i), [5 + i, *range(100, 190)], max_tokens=30, temperature=1.0, seed=i) for i in range(3)]
    answers = Engine(runner, token_budget=16).run(asked)
    with watched(runner) as computed:
        drafted = Engine(runner, token_budget=16, speculation=by_model(3)).run(asked)
    assert_same(drafted, answers)
    assert sum(computed) > 3 * 91
    assert max(computed) == 16
    assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens > 10
    assert drafted.stats.steps < answers.stats.steps


def test_prefixes_that_are_shared_are_computed_once(twins_of: Callable[[str], PagedRunner]) -> None:
    runner = twins_of("bundled")
    prefix = [11 + i % 90 for i in range(70)]
    asked = [request(str(i), [*prefix, 300 + i], max_tokens=20, temperature=0.7, seed=i) for i in range(4)]
    answers, engine = Engine(runner).run(asked), Engine(runner, speculation=by_model(3))
    engine.run(asked[:1])
    with watched(runner) as computed:
        again = engine.run(asked[1:])
    assert {one.id: answers.tokens[one.id] for one in asked[1:]} == again.tokens
    assert again.stats.accepted_tokens == again.stats.drafted_tokens
    assert max(computed) < 3 * 16 < 64, "what the first request computed was computed again"


def test_a_grammar_beside_a_draft_model() -> None:
    """Forced tokens are verified as ever, the model guesses for the others."""
    runner = with_bundled_draft("bfloat16")
    asked = [request(f"g{i}", [0, 9, 70 + i], grammar=FORM, temperature=1.0, seed=i, max_tokens=60) for i in range(3)]
    asked += [request(f"p{i}", [0, 9, 70 + i], temperature=1.0, seed=i, max_tokens=60) for i in range(3)]
    answers = Engine(runner).run(asked)
    drafted = Engine(runner, speculation=by_model(4)).run(asked)
    assert_same(drafted, answers)
    alone = Engine(runner, speculation=by_model(4)).run(asked[:3])
    assert 0 < alone.stats.accepted_tokens < drafted.stats.accepted_tokens


def test_a_sampling_that_never_agrees_is_no_fault(cpu_pair: Callable[[str], Pair]) -> None:
    """The draft is another model with random weights: it knows nothing."""
    folders = [str(cpu_pair(name).folder) for name in ("llama", "qwen2")]
    runner = load_with(*folders, max_running=64)
    asked = [
        request(str(i), [3, 4, 5 + i], seed=i, **{"max_tokens": 30} | sampling) for i, sampling in enumerate(SAMPLINGS)
    ]
    answers: Answers = Engine(runner).run(asked)
    drafted = Engine(runner, speculation=by_model(3)).run(asked)
    assert_same(drafted, answers)
    assert drafted.stats.accepted_tokens < 0.3 * drafted.stats.drafted_tokens
