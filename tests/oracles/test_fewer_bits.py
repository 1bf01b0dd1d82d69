"""A KV cache in 8 bits rounds each token once and for all, and quantised weights multiply each row by itself: however a
token came to be computed, what follows is the same."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep, StepPlan
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.runner.paged import PagedRunner

from .drive import Answers, Engine, request

COUNT = 48
LENGTHS = [1, 15, 16, 17, 40, 130]
OFFSETS = [1, 7, 16, 29]


class Bits(NamedTuple):
    """Types of the cache and of the weights; "auto": bfloat16."""

    cache: str
    weights: str

    def load(self) -> PagedRunner:
        """The bundled model."""
        options = ModelOptions(
            model=str(model_folder("demo")), device="cpu", kv_dtype=self.cache, quantization=self.weights,
            num_blocks=400, host_cache_bytes=16 << 20, threads=1,
        )  # fmt: skip
        return load_runner(options)


KINDS = [Bits("int8", "auto"), Bits("fp8", "auto"), Bits("auto", "int4"), Bits("int8", "int8"), Bits("fp8", "fp8")]


@pytest.fixture(scope="module", params=KINDS, ids=lambda bits: f"cache-{bits.cache}-weights-{bits.weights}")
def runner(request: pytest.FixtureRequest) -> PagedRunner:
    return request.param.load()


def prompt(number: int, vocab_size: int = 2048) -> list[int]:
    """Every fourth begins like another."""
    rng = random.Random(number % 4 if number % 4 == 0 else number)
    return [rng.randrange(5, vocab_size) for _ in range(LENGTHS[number % len(LENGTHS)])] + [5 + number]


def numbered(number: int, **options: object) -> AddRequest:
    """By turns greedy, seeded and two seeded samples."""
    kind: dict[str, object] = [{}, {"temperature": 0.9}, {"temperature": 0.9, "n": 2}][number % 3]  # type: ignore[assignment]
    return request(str(number), prompt(number), seed=number, max_tokens=30, **kind | options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def together(runner: PagedRunner) -> Answers:
    answers = Engine(runner).run([numbered(i) for i in range(COUNT)])
    assert answers.stats.preemptions == 0
    assert len({token for tokens in answers.tokens.values() for token in tokens[0]}) > 100
    return answers


@pytest.mark.full(but=1)
def test_alone(runner: PagedRunner, together: Answers) -> None:
    for i in range(0, COUNT, 5):
        assert Engine(runner).run([numbered(i)]).tokens[str(i)] == together.tokens[str(i)]


@pytest.mark.full(but=1)
def test_after_a_hit_in_the_prefix_cache(runner: PagedRunner, together: Answers) -> None:
    engine = Engine(runner)
    engine.run([numbered(i) for i in range(COUNT)])
    again = engine.run([numbered(i) for i in range(COUNT)])
    assert again.tokens == together.tokens
    assert sum(again.cached.values()) > 500


@pytest.mark.full(but=1)
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_after_preemption(runner: PagedRunner, together: Answers, mode: str) -> None:
    hosts = runner.num_host_blocks if mode == "swap" else 0
    tight = Engine(runner, num_blocks=40, num_host_blocks=hosts, policy=PreemptionPolicy(mode))
    answers = tight.run([numbered(i) for i in range(COUNT)])
    assert answers.stats.preemptions > 10
    assert (answers.stats.swapped_out > 10) == (mode == "swap")
    assert answers.tokens == together.tokens


@pytest.mark.full(but=1)
def test_after_a_takeover(runner: PagedRunner, together: Answers) -> None:
    for i in range(0, COUNT, 7):
        whole = together.tokens[str(i)]
        for published in OFFSETS:
            resumed = {index: tokens[:published] for index, tokens in whole.items()}
            assert Engine(runner).run([numbered(i, resumed=resumed)]).tokens[str(i)] == whole


@pytest.mark.full(but=3)
def test_a_token_computed_again_has_the_same_bytes(runner: PagedRunner) -> None:
    tokens = prompt(5)[:100]
    runner.kv_cache.view(torch.uint8).zero_()
    run(runner, SequenceStep(tokens, 0, [1, 2, 3, 4, 5, 6, 7]))
    for at in range(100):
        run(runner, SequenceStep([tokens[at]], at, [8, 9, 10, 11, 12, 13, 14]), SequenceStep(tokens[:20], 0, [15, 16]))
    cells = runner.kv_cache.view(torch.uint8)
    assert cells[1:8].any()
    assert torch.equal(cells[1:8], cells[8:15])


def run(runner: PagedRunner, *steps: SequenceStep) -> None:
    runner.launch(StepPlan(list(steps), 0)).result()


@pytest.mark.parametrize("cache", ["int8", "fp8"])
def test_a_cache_in_8_bits_loses_little(cache: str) -> None:
    """Log-probabilities of all long prompts beside those with the cache in bfloat16: what one of them loses
    depends on how a CPU rounds."""
    long = [number for number in range(COUNT) if len(prompt(number)) > 100]

    def logprobs(engine: Engine) -> torch.Tensor:
        answers = engine.run([request(str(i), prompt(i), prompt_logprobs=0, max_tokens=1) for i in long])
        found = [answers.prompt_logprobs[str(i)] for i in long]
        return torch.tensor([entry.logprob for entries in found for entry in entries if entry is not None])

    rounded, plain = (logprobs(Engine(Bits(kind, "auto").load())) for kind in (cache, "auto"))
    assert not torch.equal(rounded, plain)
    assert (rounded - plain).abs().max() < 0.25
    assert (rounded - plain).abs().mean() < 0.03
