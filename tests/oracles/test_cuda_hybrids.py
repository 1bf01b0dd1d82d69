"""Families with recurrent layers on a GPU: near transformers, and the same bits with graphs as without, however prompts
are cut, in every company, after swaps, hits and a takeover, and where drafts are verified."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from proposers import speculate
from transformers import PreTrainedModel

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.options import ModelOptions, OnlineQuantization
from octavo_worker.contract.step import ModelRunner
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.decoder import Decoder

from .by_hand import ByHand
from .drive import Engine, Orphans, assert_same, request, states_of
from .guessing import told
from .hybrid_wide import CONTEXT, VOCAB, WIDE, save_rounded

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

DENSE = ["lfm2", "qwen3_5", "granitemoehybrid", "falcon_h1", "olmo_hybrid"]
"""A member of every kind of recurrent layer."""
MOST, RUNNING = 5, 24


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By name: the folder, and the model in float32."""

    @cache
    def make(name: str) -> tuple[Path, PreTrainedModel]:
        folder = tmp_path_factory.mktemp(name)
        return folder, save_rounded(name, folder)

    return make


@pytest.fixture(scope="module")
def loaded(made: Any) -> Any:
    """A runner by name, with what options change."""

    @cache
    def load(name: str, **more: object) -> ModelRunner:
        return load_runner(options(made(name)[0], **more))

    return load


def options(folder: Path, **more: object) -> ModelOptions:
    fixed = {
        "num_blocks": 513, "state_slots": 200, "host_cache_bytes": 256 << 20, "max_running": RUNNING, "device": "cuda",
        "dtype": "bfloat16", "max_model_len": CONTEXT,
    }  # fmt: skip
    return ModelOptions(model=str(folder), **{**fixed, **more})  # type: ignore[arg-type]


def engine_of(runner: ModelRunner, **more: Any) -> Engine:
    return Engine(runner, max_running=RUNNING, **more)


def requests(count: int, seed: int = 1) -> list[AddRequest]:
    """Greedy and seeded, some of which begin alike or are several."""
    rng = random.Random(seed)
    prefix = [rng.randrange(VOCAB) for _ in range(200)]
    made = []
    for number in range(count):
        length = rng.choice([1, 15, 16, 17, 40, 150])
        prompt = prefix[: rng.choice([0, 0, 48, 200])] + [rng.randrange(VOCAB) for _ in range(length)]
        sampling = {"temperature": 0.9 * (number % 2), "seed": number, "n": 1 + 2 * (number % 6 == 5)}
        made.append(request(str(number), prompt, max_tokens=rng.randint(12, 40), logprobs=0, **sampling))  # type: ignore[arg-type]
    return made


def losses(oracle: PreTrainedModel, runner: ModelRunner, prompts: Sequence[list[int]], new: int) -> torch.Tensor:
    """Distances of the log-probabilities of greedy tokens from transformers' own, in float32."""
    found = []
    for said, prompt in zip(ByHand(runner).answers(prompts, new), prompts, strict=True):
        with torch.inference_mode():
            logits = oracle(torch.tensor([said.text])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        wanted = logits.gather(1, torch.tensor(said.text[len(prompt) :])[:, None])[:, 0]
        found.append((torch.tensor(said.logprobs) - wanted).abs())
    return torch.cat(found)


@pytest.mark.parametrize("name", WIDE)
def test_log_probabilities_are_as_near_to_transformers_as_on_a_cpu(name: str, made: Any, loaded: Any) -> None:
    folder, oracle = made(name)
    runner = loaded(name)
    assert isinstance(runner.model, Decoder)
    assert "state-f32" in runner.numerics
    rng = random.Random(2)
    prompts = [[rng.randrange(VOCAB) for _ in range(length)] for length in (1, 3, 40, 120)]
    on_cpu = load_runner(options(folder, device="cpu", host_cache_bytes=0, threads=2))
    ours, theirs = (losses(oracle, each, prompts, 12) for each in (runner, on_cpu))
    # A row of a mixture that takes other experts than in float32 is off by chance: of five sets of prompts on a CPU the
    # means differed by 1.9, and by 1.3 without experts. One row in ten is such a row.
    by, most = (2.5, 0.5) if runner.model.mixtures else (1.5, 0.9)
    assert ours.mean() <= by * theirs.mean()
    assert ours.quantile(most) <= 1.3 * by * theirs.quantile(most)


@pytest.mark.parametrize("name", DENSE)
def test_numerics_tell_of_chunks(name: str, loaded: Any) -> None:
    assert ("chunks" in loaded(name).numerics) == (name not in ("lfm2", "olmo_hybrid"))
    assert "chunks" not in loaded(name, deterministic=True).numerics


@pytest.mark.parametrize("name", WIDE)
def test_nothing_shows_in_deterministic_answers(name: str, loaded: Any) -> None:
    """No cut of prompts, no company, no hit, no preemption, no graph."""
    runner, every = loaded(name, deterministic=True), requests(32)
    together = engine_of(runner).run(every)
    assert_same(engine_of(runner, token_budget=90).run(every), together)
    engine = engine_of(runner)
    for one in every[::7]:
        answers = engine.run([one])
        assert (answers.tokens[one.id], answers.logprobs[one.id]) == (
            together.tokens[one.id],
            together.logprobs[one.id],
        )
    engine = engine_of(runner)
    engine.run(every)
    again = engine.run(every)
    assert sum(again.cached.values()) > 500
    assert_same(again, together)
    plain = loaded(name, deterministic=True, cuda_graphs=False)
    assert_same(engine_of(plain, token_budget=130).run(every), together)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("name", [*DENSE, "qwen3_next", "mamba2"])
def test_preemption_changes_nothing(name: str, mode: str, loaded: Any) -> None:
    runner, every = loaded(name, deterministic=True), requests(32)
    policy = PreemptionPolicy(mode)  # type: ignore[arg-type]
    short = engine_of(runner, num_blocks=90, states=states_of(runner, 36), policy=policy, num_host_blocks=400).run(
        every
    )
    assert short.stats.preemptions > 0
    assert_same(short, engine_of(runner).run(every))


@pytest.mark.parametrize("name", DENSE)
def test_another_engine_goes_on_with_the_next_token(name: str, loaded: Any) -> None:
    every = requests(32, seed=3)
    together = engine_of(loaded(name, deterministic=True)).run(every)
    orphans = Orphans.of(every, together, random.Random(5))
    heirs = engine_of(loaded(name, deterministic=True, cuda_graphs=False), token_budget=100).run(orphans.requests)
    orphans.assert_gone_on(heirs)


@pytest.mark.parametrize("name", WIDE)
def test_graphs_compute_what_launches_one_by_one_do(name: str, loaded: Any) -> None:
    runner, alone = loaded(name), loaded(name, cuda_graphs=False)
    for one in requests(8, seed=4):
        assert_same(engine_of(runner).run([one]), engine_of(alone).run([one]))


@pytest.mark.parametrize("name", DENSE)
def test_drafts_change_no_bit(name: str, loaded: Any) -> None:
    """Drafts of which 7 in 10 are right: a state is kept behind each row, in graphs and in long steps."""
    runner, every = loaded(name, deterministic=True, speculate="ngram", speculate_most=MOST), requests(24, seed=6)
    plain = engine_of(runner).run(every)
    for asked in (every, every[:1]):
        proposer = told(plain, asked, 0.7)
        engine = engine_of(runner, speculation=speculate(proposer, MOST, most_samples=runner.most_samples))
        answers = engine.run(asked)
        assert answers.stats.drafted_tokens > 5
        for one in asked:
            assert answers.tokens[one.id] == plain.tokens[one.id]
            assert answers.logprobs[one.id] == plain.logprobs[one.id]


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("name", DENSE)
def test_weights_of_codes_are_as_good_as_on_a_cpu(name: str, kind: OnlineQuantization, made: Any) -> None:
    folder, oracle = made(name)
    rng = random.Random(2)
    prompts = [[rng.randrange(VOCAB) for _ in range(length)] for length in (1, 16, 200)]
    runner = load_runner(options(folder, quantization=kind))
    on_cpu = load_runner(options(folder, quantization=kind, device="cpu", host_cache_bytes=0, threads=2))
    ours, theirs = (losses(oracle, each, prompts, 12) for each in (runner, on_cpu))
    by = 3 if kind == "fp8" else 1.5  # whose activations a GPU rounds to eight bits, too
    assert ours.mean() <= by * theirs.mean()
