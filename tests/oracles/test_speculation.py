"""Tokens and log-probabilities with drafts are those without, bit for bit: every kind of model and memory with every
way to guess and every option of sampling."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from followed import END, schema
from proposers import speculate

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest, BeamOptions, Grammar
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.memory.cost import PreemptionPolicy

from .conftest import Pair
from .drive import Answers, Engine, Orphans, assert_same, request
from .guessing import proposers, told

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "float32": ("llama", {"dtype": "float32"}),
    "bfloat16": ("llama", {"dtype": "bfloat16"}),
    "sliding": ("mistral", {"dtype": "bfloat16"}),
    "some layers slide": ("gemma2", {"dtype": "float32"}),
    "transformers' code": ("gpt_neox", {"dtype": "bfloat16"}),
    "delta rule": ("qwen3_5", {"dtype": "float32"}),
    "Mamba2": ("bamba", {"dtype": "bfloat16"}),
    "convolutions": ("lfm2", {"dtype": "bfloat16"}),
    "bundled": ("demo", {}),
    "int8 cache": ("demo", {"kv_dtype": "int8"}),
    "fp8 cache": ("demo", {"kv_dtype": "fp8"}),
    "int4 weights": ("demo", {"quantization": "int4"}),
    "int8 weights": ("demo", {"quantization": "int8"}),
    "fp8 weights": ("demo", {"quantization": "fp8", "kv_dtype": "fp8"}),
    "two ranks": ("demo", {"tensor_parallel": 2, "quantization": "int4"}),
}
MEMORIES: dict[str, dict[str, Any]] = {
    "ample": {},
    "recomputed": {"num_blocks": 16, "policy": PreemptionPolicy("recompute")},
    "swapped": {"num_blocks": 16, "num_host_blocks": 200, "reads_host": False, "policy": PreemptionPolicy("swap")},
    "oversized": {"num_blocks": 8, "num_host_blocks": 200, "policy": PreemptionPolicy("swap")},
}
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_p": 0.95},
    {"temperature": 1.3, "top_k": 30, "min_p": 0.01, "logprobs": 2},
    {"temperature": 0.7, "n": 3},
    {"beam": BeamOptions(3), "n": 2, "stop_token_ids": [END]},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3, "logprobs": 0},
    {"temperature": 1.3, "min_tokens": 9, "stop_token_ids": list(range(0, 200, 3)), "logit_bias": {5: 3.0}},
    {"temperature": 1.0, "prompt_logprobs": 1, "logprobs": 1},
    {"stop_token_ids": list(range(0, 200, 11))},
    {"temperature": 0.7, "frequency_penalty": 0.8},
]
FORM = schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 9},
            "tags": {"type": "array", "items": {"enum": [1, 2]}},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
)
GRAMMARS: list[dict[str, Any]] = [
    {"grammar": FORM, "temperature": 1.0, "logprobs": 1},
    {"grammar": Grammar("regex", "[0-9]{4}(abc){9}[a-z]{7}"), "temperature": 0.7, "n": 2, "presence_penalty": 0.5},
    {"grammar": Grammar("choice", '["yes", "yesterday", "no"]'), "min_tokens": 4, "temperature": 1.3},
    {"grammar": Grammar("regex", "[0-9]{9}"), "beam": BeamOptions(3)},
]


def requests_for(name: str) -> list[AddRequest]:
    """Requests of all samplings, some in lines that repeat, some that begin alike."""
    rng = random.Random(3)
    line = [rng.randrange(200) for _ in range(9)]
    made = []
    for number, sampling in enumerate(SAMPLINGS + SAMPLINGS + (GRAMMARS if name == "demo" else [])):
        tail = [rng.randrange(200) for _ in range(rng.randint(1, 20))]
        prompt = line * rng.choice([0, 1, 3]) + tail + line[:3]
        fixed: dict[str, Any] = {"seed": number, "max_tokens": rng.choice([1, 7, 16, 40])}
        if "grammar" in sampling:
            fixed |= {"max_tokens": 60, "stop_token_ids": [END]}
        made.append(request(str(number), prompt, **fixed | sampling))
    return made


@pytest.fixture(scope="session")
def runner_of(cpu_pair: Callable[[str], Pair]) -> Callable[[str], ModelRunner]:
    @cache
    def load(kind: str) -> ModelRunner:
        name, options = KINDS[kind]
        folder: str | Path = name if name == "demo" else cpu_pair(name).folder
        fixed = {"device": "cpu", "threads": 1, "num_blocks": 513, "host_cache_bytes": 32 << 20, "max_running": 64}
        return load_runner(ModelOptions(model=str(folder), **fixed | options))

    return load


@pytest.fixture(scope="session")
def plain(runner_of: Callable[[str], ModelRunner]) -> Callable[[str], Answers]:
    @cache
    def run(kind: str) -> Answers:
        answers = Engine(runner_of(kind)).run(requests_for(KINDS[kind][0]))
        assert answers.stats.drafted_tokens == answers.stats.preemptions == 0
        return answers

    return run


PROPOSERS = proposers(chance=0.5)


@pytest.mark.full(but=3)
@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "bundled", "two ranks"])
def test_any_drafter_gives_the_same_answers(
    kind: str, proposer: str, runner_of: Callable[[str], ModelRunner], plain: Callable[[str], Answers]
) -> None:
    requests, answers = requests_for(KINDS[kind][0]), plain(kind)
    for most in (1, 7):
        speculation = speculate(PROPOSERS[proposer](answers, requests), most)
        drafted = Engine(runner_of(kind), speculation=speculation).run(requests)
        assert drafted.stats.drafted_tokens > 30
        knows = proposer in ("right by chance", "always right") or (
            kind == "bundled" and proposer in ("ngram", "suffix")
        )
        assert drafted.stats.accepted_tokens > 20 or not knows
        assert_same(drafted, answers)


@pytest.mark.full(but=3)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_in_every_memory(
    kind: str, memory: str, runner_of: Callable[[str], ModelRunner], plain: Callable[[str], Answers]
) -> None:
    requests, answers, runner = requests_for(KINDS[kind][0]), plain(kind), runner_of(kind)
    if memory == "oversized":
        requests = [asked for asked in requests if asked.sampling.beam is None]  # beams are never
        requests += [request("long", [7, 8, 9] * 45, max_tokens=40, temperature=0.7, logprobs=1)]
        answers = Engine(runner).run(requests)
    options = MEMORIES[memory]
    if runner.window and options:
        options = {**options, "num_blocks": 8}  # of which a window keeps few
    speculation = speculate(told(answers, requests, 0.7), 5)
    drafted = Engine(runner, speculation=speculation, **options).run(requests)
    assert drafted.stats.accepted_tokens > 50
    assert (drafted.stats.preemptions > 0) == (memory != "ample")
    assert drafted.stats.swapped_out > 0 or memory in ("ample", "recomputed")
    assert drafted.cold_steps > 0 or memory != "oversized" or runner.window > 0
    assert_same(drafted, answers)


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("proposer", ["right by chance", "ngram", "suffix"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "bundled"])
def test_another_engine_goes_on_amid_a_window(
    kind: str, proposer: str, runner_of: Callable[[str], ModelRunner], plain: Callable[[str], Answers]
) -> None:
    """It gets what was published, which may end anywhere between two drafts."""
    rng, answers, runner = random.Random(9), plain(kind), runner_of(kind)
    asked = [one for one in requests_for(KINDS[kind][0]) if one.sampling.beam is None]
    speculation = speculate(PROPOSERS[proposer](answers, asked), 5)
    for _ in range(3):
        orphans = Orphans.of(asked, answers, rng)
        drafted = Engine(runner, speculation=speculation).run(orphans.requests)
        assert drafted.stats.accepted_tokens > 20 or proposer != "right by chance"
        orphans.assert_gone_on(drafted)


def test_a_prefix_that_is_shared_and_pinned_is_no_other_with_drafts(runner_of: Callable[[str], ModelRunner]) -> None:
    runner = runner_of("bundled")
    prefix = [11 + i % 90 for i in range(70)]
    requests = [request(str(i), [*prefix, 300 + i], max_tokens=30, temperature=0.7, seed=i) for i in range(6)]
    answers = Engine(runner).run(requests)
    engine = Engine(runner, speculation=speculate(told(answers, requests, 0.8)))
    engine.scheduler.kv.pinned.pin("p", prefix, b"")
    first, again = engine.run(requests), engine.run(requests)
    assert_same(first, answers)
    assert_same(again, answers)
    assert sum(again.cached.values()) >= 6 * 64
