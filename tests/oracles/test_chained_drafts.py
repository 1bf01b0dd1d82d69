"""Passes of a draft model that follow each other on the device: what they guess is what passes guess that the host
begins one by one. The same tensors are computed here on a CPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from chained_drafts import ChainedRunner
from transformers import LlamaConfig
from watched_draft import watched

from octavo_worker.runner.paged import PagedRunner

from .drive import Engine, assert_same, request
from .test_draft_model import by_model, load_with, without_beams
from .test_speculation import MEMORIES, requests_for

MOST, ROWS = 3, 64
KINDS: dict[str, dict[str, Any]] = {"bfloat16": {}, "float32": {"dtype": "float32"}, "int8 cache": {"kv_dtype": "int8"}}


@cache
def twin(kind: str) -> PagedRunner:
    """Whose draft is its own model."""
    return load_with("demo", "demo", max_running=64, **KINDS[kind])


def chained(runner: PagedRunner, **options: Any) -> ChainedRunner:
    return ChainedRunner(runner, **{"most": MOST, "rows": ROWS} | options)


@pytest.mark.full(but=2)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_that_is_the_target_is_always_right(kind: str, memory: str) -> None:
    runner, options = chained(twin(kind)), MEMORIES[memory]
    asked = [one for one in without_beams("demo") if one.grammar is None]
    if memory == "oversized":
        asked += [request("long", [7, 8, 9] * 45, max_tokens=40, temperature=0.7, logprobs=1)]
    if options:
        options = {**options, "num_blocks": 8 if memory == "oversized" else 12}
    answers = Engine(twin(kind)).run(asked)
    drafted = Engine(runner, speculation=by_model(MOST), **options).run(asked)  # type: ignore[arg-type]
    assert_same(drafted, answers)
    assert (drafted.stats.preemptions > 0) == (memory != "ample")
    assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens > 100
    assert runner.on_device > 20
    assert runner.on_host > 5, "penalties and biases"


@pytest.mark.full(but=1)
@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_smaller_draft_guesses_as_it_does_pass_by_pass(most: int) -> None:
    """With rows of all lengths: token for token, so the same number of them is right."""
    runner = load_with("demo", "demo-draft", max_running=16)
    asked = [one for one in requests_for("demo") if one.sampling.beam is None]
    alone = Engine(runner, speculation=by_model(most)).run(asked)
    together = Engine(chained(runner, most=most), speculation=by_model(most)).run(asked)  # type: ignore[arg-type]
    assert_same(together, alone)
    assert together.stats.drafted_tokens == alone.stats.drafted_tokens > 100
    assert together.stats.accepted_tokens == alone.stats.accepted_tokens > 50


@pytest.mark.parametrize("width", [44, 64])
def test_a_draft_of_another_width_says_only_what_both_know(width: int, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    for name, rows in (("target", 50), ("draft", width)):
        LlamaConfig(vocab_size=rows, max_position_embeddings=256, **sizes).save_pretrained(tmp_path / name)
    folders = [str(tmp_path / name) for name in ("target", "draft")]
    runner = load_with(*folders, load_format="dummy", dtype="float32", max_running=8)
    asked = [request(str(i), [49, 48, 47, i], max_tokens=30, temperature=2.0, seed=i) for i in range(4)]
    alone = Engine(runner, speculation=by_model(MOST)).run(asked)
    together = Engine(chained(runner, rows=8), speculation=by_model(MOST)).run(asked)  # type: ignore[arg-type]
    assert_same(together, alone)
    assert together.stats.accepted_tokens == alone.stats.accepted_tokens


def test_more_windows_than_a_pass_has_rows_are_guessed_on_the_host() -> None:
    runner = load_with("demo", "demo", max_running=16)
    few = chained(runner)
    few.draft._passes._sizes = [1, 2]
    asked = [request(str(i), [5 + i, 9, 30 + i], max_tokens=20, temperature=0.9, seed=i) for i in range(6)]
    answers = Engine(few, speculation=by_model(MOST)).run(asked)  # type: ignore[arg-type]
    assert_same(answers, Engine(runner).run(asked))
    assert answers.stats.accepted_tokens == answers.stats.drafted_tokens
    assert few.on_device > 5 < few.on_host


def test_a_window_that_was_right_to_its_end_costs_no_pass() -> None:
    """Its last guess lacks its keys and values: the next first pass computes them beside its own token's."""
    runner = load_with("demo", "demo", max_running=16)
    asked = [request("one", [5, 9, 30], max_tokens=1 + 5 * (MOST + 1), temperature=0.9, seed=1)]
    with watched(runner) as computed:
        answers = Engine(chained(runner), speculation=by_model(MOST)).run(asked)  # type: ignore[arg-type]
    assert answers.stats.accepted_tokens == answers.stats.drafted_tokens == 5 * MOST
    assert computed[0] == 2, "of three tokens of the prompt and the first one said, the first pass computes two"
    assert computed[1:] == [2, *[1] * (MOST - 1)] * 5


def test_missed_tokens_are_caught_up_in_pieces() -> None:
    runner = load_with("demo", "demo", token_budget=16, max_running=8)
    asked = [request(str(i), [5 + i, *range(100, 190)], max_tokens=30, temperature=1.0, seed=i) for i in range(3)]
    answers = Engine(runner, token_budget=16).run(asked)
    with watched(runner) as computed:
        drafted = Engine(chained(runner, rows=8), token_budget=16, speculation=by_model(3)).run(asked)  # type: ignore[arg-type]
    assert_same(drafted, answers)
    assert sum(computed) > 3 * 90
    assert max(computed) == 16
    assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens > 10


def test_a_draft_of_a_shorter_context_stops_there() -> None:
    runner = load_with("demo", "demo", max_running=8)
    asked = [request("one", [5, 9, 30], max_tokens=60, temperature=0.9, seed=1)]
    short = chained(runner, context=30)
    answers = Engine(short, speculation=by_model(MOST)).run(asked)  # type: ignore[arg-type]
    assert_same(answers, Engine(runner).run(asked))
    assert 12 <= answers.stats.accepted_tokens <= 27
