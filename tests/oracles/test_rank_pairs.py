"""Ranks beside all else that a worker may be told or asked: weights, caches, and all kinds of requests of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec
import pytest
from followed import END, text_of
from forked_ranks import forked_ranks
from gpus import has_gpu
from two_gpus import TWO_GPUS

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest, BeamOptions, EngineSampling, Grammar
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner, Sampled, SampleSpec, SequenceStep, StepPlan
from octavo_worker.memory.cost import PreemptionPolicy
from octavo_worker.model.errors import ModelError
from octavo_worker.ranks.processes import Ranks

from .drive import Answers, Engine, request

WEIGHTS = ["auto", "fp8", "int8", "int4"]
CACHES = ["auto", "int8", "fp8"]
# Two tokens of the first request are 0.0007 apart in log-probability. A key whose sum had another order may be rounded
# to the next code, which decides between them on some processors.
TIED = ("int4", "fp8")
WORDS = Grammar("choice", '["yes", "yesterday", "no"]')


@dataclass
class Two:
    """The bundled model on one rank and on two. On CPUs their tokens are equal unless rows of x become codes of 8 bits:
    each rank's part of a row has a scale of its own. On GPUs, in 16 bits, they are equal for equal numbers of ranks."""

    alone: ModelRunner
    ranks: ModelRunner
    equal: bool


ON_CPUS = [pytest.param(("cpu", *pair), id=" ".join(pair)) for pair in product(WEIGHTS, CACHES)]
ON_GPUS = [
    pytest.param(("cuda", *pair), id=" ".join(["cuda", *pair]), marks=TWO_GPUS)
    for pair in (("auto", "auto"), ("fp8", "int8"), ("int8", "auto"), ("int4", "fp8"))
]


@pytest.fixture(scope="module", params=[*ON_CPUS, *(ON_GPUS if has_gpu() else [])])
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    device, weights, cache = request.param
    options = ModelOptions(
        model="demo", device=device, quantization=weights, kv_dtype=cache, num_blocks=300, host_cache_bytes=4 << 20,
        threads=1, max_running=64, dtype="float32" if device == "cpu" else "bfloat16", deterministic=device == "cuda",
    )  # fmt: skip
    on_two = msgspec.structs.replace(options, tensor_parallel=2)
    others = forked_ranks(on_two) if device == "cpu" else Ranks.start(on_two)
    ranks = load_runner(on_two, others)
    yield Two(load_runner(options), ranks, equal=device == "cpu" and weights != "int8" and (weights, cache) != TIED)
    others.close()


def requests() -> list[AddRequest]:
    kinds: list[dict[str, Any]] = [
        {"logprobs": 2},
        {"temperature": 0.9, "top_p": 0.9},
        {"n": 3, "temperature": 1.1, "top_k": 50, "min_p": 0.01},
        {"n": 2, "beam": BeamOptions(3)},
        {"grammar": WORDS, "temperature": 1.0, "stop_token_ids": [END]},
        {"grammar": Grammar("regex", "[0-9]{3}[a-z ]{9}"), "n": 2, "beam": BeamOptions(3), "stop_token_ids": [END]},
        {"grammar": Grammar("regex", "[a-f]{12}"), "logprobs": 1, "frequency_penalty": 0.6, "stop_token_ids": [END]},
        {"prompt_logprobs": 1, "repetition_penalty": 1.2},
    ]
    return [request(str(i), [5 + i, *range(300, 320 + 9 * i)], seed=i, max_tokens=24, **k) for i, k in enumerate(kinds)]


@pytest.mark.full(but=1)
def test_all_kinds_of_requests(two: Two) -> None:
    roomy = Engine(two.ranks).run(requests())
    for asked in requests():
        alone = Engine(two.ranks).run([asked])
        assert alone.tokens[asked.id] == roomy.tokens[asked.id]
        assert alone.logprobs[asked.id] == roomy.logprobs[asked.id]
    policy = PreemptionPolicy("swap")
    tight = Engine(two.ranks, num_blocks=24, num_host_blocks=two.ranks.num_host_blocks, policy=policy).run(requests())
    assert tight.stats.preemptions > 0
    assert (tight.tokens, tight.logprobs) == (roomy.tokens, roomy.logprobs)
    obeys(roomy)
    if two.equal:
        assert roomy.tokens == Engine(two.alone).run(requests()).tokens


def obeys(answers: Answers) -> None:
    assert {text_of(tokens) for tokens in answers.tokens["4"].values()} <= {"yes", "yesterday", "no"}
    assert all(text_of(tokens)[:12].strip("abcdef") == "" for tokens in answers.tokens["6"].values())


@pytest.mark.full(but=1)
def test_drafts(two: Two) -> None:
    """Rows of one step are those of steps of one row, on two ranks as on one."""
    prompt, params = list(range(7, 27)), EngineSampling(seed=5, max_tokens=9, temperature=0.9, top_p=0.9)

    def rows(runner: ModelRunner) -> list[Sampled]:
        spec = SampleSpec(params, 0, prompt[:17], [])
        runner.launch(StepPlan([SequenceStep(prompt[:17], 0, [9, 3])], 0)).result()
        step = SequenceStep(prompt[17:], 17, [9, 3], [spec] * 3, [0, 1, 2])
        return runner.launch(StepPlan([step], 1)).result().sequences[0].samples

    together = rows(two.ranks)
    for at, wanted in enumerate(together, 17):
        spec = SampleSpec(params, 0, prompt[:17], prompt[17:at])
        step = SequenceStep([prompt[at]], at, [9, 3], [spec])
        assert two.ranks.launch(StepPlan([step], 1)).result().sequences[0].samples == [wanted]
    if two.equal:
        assert rows(two.alone) == together


@pytest.mark.parametrize("kind", ["draft", "eagle"])
def test_what_the_runner_would_guess_is_refused(kind: str) -> None:
    options = ModelOptions(
        model="demo", device="cpu", num_blocks=300, tensor_parallel=2, speculate=f"{kind}:demo-draft"
    )
    with pytest.raises(ModelError, match=f"{kind}: runs on one rank; give ngram or suffix"):
        load_runner(options)
