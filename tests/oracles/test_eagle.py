"""Drafts of an EAGLE-3 head: they are those of the paper's head, change no bit of what is said, and are right where the
head knows its target, wherever the memory of a sequence went meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from eagle_heads import VOCAB, knowing_pair, random_head
from watched_draft import watched

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.drafts import ModelProposer, RowTimes, Speculation, StepCosts
from octavo_worker.runner.paged import PagedRunner

from .conftest import Pair
from .drive import Engine, Orphans, assert_same, request
from .test_speculation import FORM, MEMORIES, requests_for

FREE = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4096, 1.0)]), RowTimes([(1, 1e-9)]))
"""Any draft pays, and catching up does."""
FIXED: dict[str, Any] = {"device": "cpu", "threads": 1, "num_blocks": 513, "host_cache_bytes": 32 << 20}
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "float32": ("llama", {"dtype": "float32"}, {"draft_vocab_size": 70}),
    "bfloat16": ("llama", {"dtype": "bfloat16"}, {}),
    "some layers slide": ("gemma2", {"dtype": "float32"}, {}),
    "sums are not plain": ("granite", {"dtype": "float32"}, {"draft_vocab_size": 70}),
    "bundled": ("demo", {}, {"draft_vocab_size": 300}),
    "int8 cache": ("demo", {"kv_dtype": "int8"}, {}),
    "int4 weights": ("demo", {"quantization": "int4"}, {}),
}
"""Target, how it is loaded, and what its head is like."""


def load(model: Path, head: Path, **options: Any) -> PagedRunner:
    runner = load_runner(ModelOptions(model=str(model), speculate=f"eagle:{head}", **FIXED | options))
    assert isinstance(runner, PagedRunner)
    return runner


def by_head(most: int) -> Speculation:
    return Speculation(ModelProposer(), FREE, most)


@pytest.fixture(scope="session")
def with_random_head(
    cpu_pair: Callable[[str], Pair], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], PagedRunner]:
    @cache
    def make(kind: str) -> PagedRunner:
        name, options, head = KINDS[kind]
        target = model_folder("demo") if name == "demo" else cpu_pair(name).folder
        folder = random_head(tmp_path_factory.mktemp(f"head-{name}"), target, **head)
        return load(target, folder, max_running=64, **options)

    return make


@pytest.fixture(scope="session")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    """Whose head says what it does."""
    return load(*knowing_pair(tmp_path_factory.mktemp("knowing")), dtype="float32", max_running=16)


def asked_of_knowing() -> list[AddRequest]:
    """Requests of unlike beginnings: of sequences that share a block only the last to go on has its own key at its
    end."""
    rng = random.Random(2)
    samplings: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7, "top_p": 0.95},
        {"temperature": 1.3, "top_k": 30, "min_p": 0.01, "logprobs": 2},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"temperature": 1.0, "min_tokens": 9, "stop_token_ids": list(range(0, VOCAB, 3)), "logit_bias": {5: 3.0}},
        {"temperature": 1.0, "prompt_logprobs": 1},
    ]
    return [
        request(str(i), [rng.randrange(VOCAB) for _ in range(2 + 5 * i)], seed=i, max_tokens=30 + i, **samplings[i % 6])
        for i in range(12)
    ]


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_head_that_knows_its_target_is_always_right(memory: str, knowing: PagedRunner) -> None:
    """At every temperature, with every option, after preemptions and swaps: features and keys go where blocks go."""
    asked = asked_of_knowing()
    if memory == "oversized":
        asked.append(request("long", [3 + i % 90 for i in range(150)], max_tokens=40, temperature=0.7))
    answers = Engine(knowing).run(asked)
    drafted = Engine(knowing, speculation=by_head(4), **MEMORIES[memory]).run(asked)
    assert_same(drafted, answers)
    assert (drafted.stats.preemptions > 0) == (memory != "ample")
    assert drafted.stats.swapped_out > 0 or memory in ("ample", "recomputed")
    assert drafted.stats.drafted_tokens > 150
    assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens


def test_in_16_bits_two_tokens_may_change_places_in_the_head(tmp_path: Path) -> None:
    runner, asked = load(*knowing_pair(tmp_path), dtype="bfloat16", max_running=16), asked_of_knowing()
    drafted = Engine(runner, speculation=by_head(4)).run(asked)
    assert_same(drafted, Engine(runner).run(asked))
    assert drafted.stats.accepted_tokens > 0.9 * drafted.stats.drafted_tokens > 150


@pytest.mark.full(but=1)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_knows_nothing_changes_nothing(
    kind: str, memory: str, with_random_head: Callable[[str], PagedRunner]
) -> None:
    runner, asked = with_random_head(kind), requests_for(KINDS[kind][0])
    if memory == "oversized":
        asked = [one for one in asked if one.sampling.beam is None]
    answers = Engine(runner).run(asked)
    drafted = Engine(runner, speculation=by_head(3), **MEMORIES[memory]).run(asked)
    assert_same(drafted, answers)
    assert drafted.stats.drafted_tokens > 100
    assert drafted.stats.accepted_tokens < 0.3 * drafted.stats.drafted_tokens


def test_forks_and_shared_prefixes_are_right_but_for_one_key(knowing: PagedRunner) -> None:
    prefix = [5 + i % 80 for i in range(48)]
    asked = [request(str(i), prefix, n=3, max_tokens=40, temperature=1.0, seed=i) for i in range(4)]
    answers = Engine(knowing).run(asked)
    drafted = Engine(knowing, speculation=by_head(3)).run(asked)
    assert_same(drafted, answers)
    assert drafted.stats.drafted_tokens > 100
    assert drafted.stats.accepted_tokens > 0.85 * drafted.stats.drafted_tokens


def test_tokens_that_the_head_does_not_know_are_the_only_ones_it_misses(tmp_path: Path) -> None:
    known = 90
    runner = load(*knowing_pair(tmp_path, known=known), dtype="float32", max_running=16)
    asked = [request(str(i), [7 + i, 9, 30 + i], max_tokens=60, temperature=0.6, seed=i) for i in range(8)]
    answers = Engine(runner).run(asked)
    drafted = Engine(runner, speculation=by_head(1)).run(asked)
    assert_same(drafted, answers)
    said = [token for one in answers.tokens.values() for token in one[0]]
    share = sum(token < known for token in said) / len(said)
    assert 0.5 < share < 0.97
    assert drafted.stats.accepted_tokens / drafted.stats.drafted_tokens == pytest.approx(share, abs=0.1)


def test_another_engine_goes_on_amid_a_window(knowing: PagedRunner) -> None:
    rng, asked = random.Random(4), asked_of_knowing()
    answers = Engine(knowing).run(asked)
    for _ in range(3):
        orphans = Orphans.of(asked, answers, rng)
        drafted = Engine(knowing, speculation=by_head(4)).run(orphans.requests)
        assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens > 30
        orphans.assert_gone_on(drafted)


def test_steps_without_drafts_between_leave_features_as_well(knowing: PagedRunner) -> None:
    """All that the head missed is there, of a text that has been going on for long without drafts."""
    asked = [request("a", [4, 50, 31], max_tokens=80, temperature=1.0)]
    answers, engine = Engine(knowing).run(asked), Engine(knowing)
    engine.run(asked)
    engine = Engine(knowing, speculation=by_head(4))
    again = engine.run([request("a", [4, 50, 31, *answers.tokens["a"][0][:60]], max_tokens=20, temperature=1.0)])
    assert again.stats.accepted_tokens == again.stats.drafted_tokens > 10
    assert again.tokens["a"][0] == answers.tokens["a"][0][60:]


def test_missed_tokens_are_caught_up_in_pieces(tmp_path: Path) -> None:
    runner = load(*knowing_pair(tmp_path), dtype="float32", token_budget=16, max_running=8)
    asked = [request(str(i), [5 + i, *range(10, 100)], max_tokens=30, temperature=1.0, seed=i) for i in range(3)]
    answers = Engine(runner, token_budget=16).run(asked)
    with watched(runner) as computed:
        drafted = Engine(runner, token_budget=16, speculation=by_head(3)).run(asked)
    assert_same(drafted, answers)
    assert sum(computed) > 3 * 90
    assert max(computed) <= 16
    assert drafted.stats.accepted_tokens == drafted.stats.drafted_tokens > 10


def test_prefixes_that_are_shared_are_computed_once(knowing: PagedRunner) -> None:
    prefix = [11 + i % 90 for i in range(70)]
    asked = [request(str(i), [*prefix, 3 + i], max_tokens=20, temperature=0.7, seed=i) for i in range(4)]
    answers, engine = Engine(knowing).run(asked), Engine(knowing, speculation=by_head(3))
    engine.run(asked[:1])
    with watched(knowing) as computed:
        again = engine.run(asked[1:])
    assert {one.id: answers.tokens[one.id] for one in asked[1:]} == again.tokens
    assert max(computed) < 3 * 16 < 64, "what the first request computed was computed again"


def test_a_grammar_beside_a_head(with_random_head: Callable[[str], PagedRunner]) -> None:
    """Forced tokens are verified as ever, the head guesses for the others."""
    runner = with_random_head("bundled")
    asked = [request(f"g{i}", [0, 9, 70 + i], grammar=FORM, temperature=1.0, seed=i, max_tokens=60) for i in range(3)]
    asked += [request(f"p{i}", [0, 9, 70 + i], temperature=1.0, seed=i, max_tokens=60) for i in range(3)]
    answers = Engine(runner).run(asked)
    assert_same(Engine(runner, speculation=by_head(4)).run(asked), answers)
    alone = Engine(runner, speculation=by_head(4)).run(asked[:3])
    assert alone.stats.accepted_tokens > 0
